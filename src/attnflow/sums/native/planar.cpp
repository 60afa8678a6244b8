// Softmax sums of many small clouds in the plane, one cloud a lane: for every query q_i of a cloud, over its keys k_j with biases b_j,
//
//     total_i = sum_j e^{l_ij - r_i},    sum_i = sum_j e^{l_ij - r_i} k_j,    l_ij = <q_i, k_j> + b_j,
//
// relative to a reference r_i that is at most a little above the largest l_ij. Clouds are the last axis of every array, so no number ever
// leaves its lane, and the pairs of a cloud live in registers.

#include "simd.h"

namespace {

// The reference may be this much above the largest logit: it serves to keep e^x in range, for which it need not be exact.
constexpr int SLACK = 20;

// Queries, and keys, that are worked on together: enough to hide how long a step takes, few enough to stay in registers.
constexpr int AT_ONCE = 2;

// A row of the lanes that a block of clouds has; lanes past the last cloud are zero.
template <class T>
Vec<T> load(const T* row, int64_t count) {
  Vec<T> x{};
  // A copy of known size is one instruction.
  if (count == Simd<T>::lanes) std::memcpy(&x, row, sizeof(x));
  else std::memcpy(&x, row, count * sizeof(T));
  return x;
}

template <class T>
void store(T* row, Vec<T> x, int64_t count) {
  if (count == Simd<T>::lanes) std::memcpy(row, &x, sizeof(x));
  else std::memcpy(row, &x, count * sizeof(T));
}

// One block of clouds: queries, keys and biases by row.
template <class T>
struct Clouds {
  int64_t n;
  Vec<T> *q0, *q1, *k0, *k1, *b, *reference, *total, *s0, *s1;  // b is null if there are none
};

// Adds the K keys from j on to the sums of the Q queries from i on.
template <class T, int Q, int K, bool BIASED>
inline __attribute__((always_inline)) void add(const Clouds<T>& c, int64_t i, int64_t j, Vec<T> (&total)[Q], Vec<T> (&s0)[Q], Vec<T> (&s1)[Q]) {
  Vec<T> e[Q * K], k0[K], k1[K];
#pragma GCC unroll 4
  for (int k = 0; k < K; k++) k0[k] = held(c.k0[j + k]), k1[k] = held(c.k1[j + k]);
#pragma GCC unroll 4
  for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) {
      Vec<T> l = c.q0[i + q] * k0[k] - c.reference[i + q];
      if constexpr (BIASED) l += c.b[j + k];
      e[q * K + k] = c.q1[i + q] * k1[k] + l;
    }
  exponential<T>(e);
#pragma GCC unroll 4
  for (int q = 0; q < Q; q++)
#pragma GCC unroll 4
    for (int k = 0; k < K; k++) {
      total[q] += e[q * K + k];
      s0[q] += e[q * K + k] * k0[k];
      s1[q] += e[q * K + k] * k1[k];
    }
}

template <class T, int Q, bool BIASED>
void rows(const Clouds<T>& c, int64_t i) {
  Vec<T> total[Q]{}, s0[Q]{}, s1[Q]{};
  int64_t j = 0;
  for (; j + AT_ONCE <= c.n; j += AT_ONCE) add<T, Q, AT_ONCE, BIASED>(c, i, j, total, s0, s1);
  for (; j < c.n; j++) add<T, Q, 1, BIASED>(c, i, j, total, s0, s1);
  for (int q = 0; q < Q; q++) c.total[i + q] = total[q], c.s0[i + q] = s0[q], c.s1[i + q] = s1[q];
}

template <class T>
Vec<T> root(Vec<T> x) {
  for (int i = 0; i < Simd<T>::lanes; i++) x[i] = std::sqrt(x[i]);
  return x;
}

// The reference of every row: |q| max |k| where the logit of the token itself shows that this is close enough, else the largest logit.
template <class T>
void refer(const Clouds<T>& c) {
  Bits<T> far{};
  if (c.b == nullptr) {
    Vec<T> longest{};
    for (int64_t j = 0; j < c.n; j++) longest = above(longest, c.k0[j] * c.k0[j] + c.k1[j] * c.k1[j]);
    for (int64_t i = 0; i < c.n; i++) {
      c.reference[i] = root<T>((c.q0[i] * c.q0[i] + c.q1[i] * c.q1[i]) * longest);
      far |= ~(c.reference[i] - (c.q0[i] * c.k0[i] + c.q1[i] * c.k1[i]) <= T(SLACK));
    }
    if (!any<T>(far)) return;
  }
  for (int64_t i = 0; i < c.n; i++) {
    Vec<T> largest = Vec<T>{} + LOWEST<T>;
    for (int64_t j = 0; j < c.n; j++) {
      Vec<T> l = c.q0[i] * c.k0[j] + c.q1[i] * c.k1[j];
      largest = above(largest, c.b == nullptr ? l : l + c.b[j]);
    }
    c.reference[i] = largest;
  }
}

template <class T>
ffi::Error planar(Array<T> q, Array<T> k, Array<T> b, ffi::Result<Array<T>> reference, ffi::Result<Array<T>> total,
                  ffi::Result<Array<T>> sums) try {
  auto shape = k.dimensions();
  if (shape.size() != 3 || shape[0] != 2 || q.element_count() != k.element_count())
    return ffi::Error::InvalidArgument("planar wants q[2, n, m], k[2, n, m], b[n, m] or none");
  int64_t n = shape[1], m = shape[2], given = b.element_count();
  if (given != 0 && given != n * m) return ffi::Error::InvalidArgument("planar wants one b[n, m] a key, or none");
  if (n * m == 0) return ffi::Error::Success();
  FlushSmall flush;
  Room<Vec<T>> work = room<Vec<T>>(9 * n);
  Vec<T>* w = work.get();
  Clouds<T> c = {n, w, w + n, w + 2 * n, w + 3 * n, given ? w + 4 * n : nullptr, w + 5 * n, w + 6 * n, w + 7 * n, w + 8 * n};
  for (int64_t first = 0; first < m; first += Simd<T>::lanes) {
    int64_t count = std::min<int64_t>(Simd<T>::lanes, m - first);
    for (int64_t i = 0; i < n; i++) {
      int64_t at = i * m + first;
      c.q0[i] = load(q.typed_data() + at, count), c.q1[i] = load(q.typed_data() + n * m + at, count);
      c.k0[i] = load(k.typed_data() + at, count), c.k1[i] = load(k.typed_data() + n * m + at, count);
      if (given) c.b[i] = above(Vec<T>{} + LOWEST<T>, load(b.typed_data() + at, count));
    }
    refer(c);
    int64_t i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE) given ? rows<T, AT_ONCE, true>(c, i) : rows<T, AT_ONCE, false>(c, i);
    for (; i < n; i++) given ? rows<T, 1, true>(c, i) : rows<T, 1, false>(c, i);
    for (i = 0; i < n; i++) {
      int64_t at = i * m + first;
      store(reference->typed_data() + at, c.reference[i], count), store(total->typed_data() + at, c.total[i], count);
      store(sums->typed_data() + at, c.s0[i], count), store(sums->typed_data() + n * m + at, c.s1[i], count);
    }
  }
  return ffi::Error::Success();
} catch (const std::bad_alloc&) {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "planar: no memory for a block of clouds");
}

template <class T>
auto signature() {
  return ffi::Ffi::Bind()
      .template Arg<Array<T>>()
      .template Arg<Array<T>>()
      .template Arg<Array<T>>()
      .template Ret<Array<T>>()
      .template Ret<Array<T>>()
      .template Ret<Array<T>>();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(attnflow_planar_float32, planar<float>, signature<float>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(attnflow_planar_float64, planar<double>, signature<double>());
