// What the kernels share: vectors of numbers, their exponential, room in memory.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

template <class T>
struct Real;

// The constants of exp: a shift that rounds to an integer and leaves it, with the bias of the exponent, in the low bits; ln 2 in two parts;
// and the best polynomial of its degree for (e^r - 1) / r on |r| <= ln(2) / 2 (relative error 9e-8 and 3e-18).
template <>
struct Real<float> {
  using Int = int32_t;
  static constexpr ffi::DataType dtype = ffi::DataType::F32;
  static constexpr int mantissa = 23;
  static constexpr float shift = 12582912.f + 127, zero = -127 * 0.693147182f;
  static constexpr float log2e = 1.44269504f, ln2 = 0.693147182f, ln2_rest = 0;  // this ln 2 is good to 2e-9: no second part
  static constexpr float series[] = {0.999999702f, 0.499991506f, 0.166676372f, 0.0418979749f, 0.00829030573f};
};

template <>
struct Real<double> {
  using Int = int64_t;
  static constexpr ffi::DataType dtype = ffi::DataType::F64;
  static constexpr int mantissa = 52;
  static constexpr double shift = 6755399441055744. + 1023, zero = -1023 * 0.6931471805599453;
  static constexpr double log2e = 1.4426950408889634, ln2 = 0.6931471805599453, ln2_rest = 2.3190468138462996e-17;
  static constexpr double series[] = {1.0, 0.5000000000000012, 0.16666666666666216, 0.04166666666651765, 0.008333333333550635,
                                      0.0013888888946399314, 0.00019841269434990705, 2.4801490587938934e-05, 2.7557628186275506e-06,
                                      2.7631051602832974e-07, 2.499099158609598e-08};
};

template <class T>
struct Simd {
  typedef T Vec __attribute__((vector_size(BYTES)));
  typedef typename Real<T>::Int Bits __attribute__((vector_size(BYTES)));
  static constexpr int lanes = BYTES / sizeof(T);
};
template <class T>
using Vec = typename Simd<T>::Vec;
template <class T>
using Bits = typename Simd<T>::Bits;

// A value in a register, of which the compiler knows nothing more. Otherwise it reads the operands of the product from memory again for every
// row, which takes longer than the arithmetic, and makes two instructions of a maximum with a constant.
template <class V>
inline V held(V x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#endif
  return x;
}

// The larger of two; a NaN in the second stays.
template <class V>
inline V above(V floor, V x) {
  return floor > x ? floor : x;
}

// e^x for x below about 60, exactly 0 from where that is no longer normal; NaN stays NaN. On a few vectors at a time, step by step: one alone
// is a long chain in which every step waits for the one before.
#define EACH _Pragma("GCC unroll 8") for (int i = 0; i < N; i++)
template <class T, int N>
inline __attribute__((always_inline)) void exponential(Vec<T> (&x)[N]) {
  using R = Real<T>;
  constexpr int degree = std::size(R::series);
  Vec<T> t[N], r[N], p[N];
  EACH x[i] = above(held(Vec<T>{} + R::zero), x[i]);
  EACH t[i] = x[i] * R::log2e + R::shift;
  EACH p[i] = t[i] - R::shift;
  EACH r[i] = x[i] - p[i] * R::ln2;
  if constexpr (R::ln2_rest != 0) EACH r[i] -= p[i] * R::ln2_rest;
  EACH p[i] = r[i] * R::series[degree - 1] + R::series[degree - 2];
#pragma GCC unroll 16
  for (int k = degree - 3; k >= 0; k--) EACH p[i] = p[i] * r[i] + R::series[k];
  EACH p[i] = p[i] * r[i] + T(1);
  // The low bits of t are the biased exponent; the rest is shifted out.
  EACH x[i] = p[i] * (Vec<T>)((Bits<T>)t[i] << R::mantissa);
}

template <class T>
inline bool any(Bits<T> mask) {
  typename Real<T>::Int found = 0;
  for (int i = 0; i < Simd<T>::lanes; i++) found |= mask[i];
  return found != 0;
}

// The logit of a key without mass or unseen: far below all others, and finite, so that products with zero stay zero.
template <class T>
constexpr T LOWEST = -std::numeric_limits<T>::max() / 8;

constexpr int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class T>
using Room = std::unique_ptr<T[], decltype(&std::free)>;

template <class T>
Room<T> room(int64_t count) {
  void* found = std::aligned_alloc(64, up_to(count * sizeof(T) + 1, 64));
  if (found == nullptr) throw std::bad_alloc();
  return {static_cast<T*>(found), std::free};
}

// Numbers too small to be normal count as zero, as in XLA's own code. Threads may come with either setting, and results must not depend on it.
struct FlushSmall {
#if defined(__SSE__)
  unsigned before = __builtin_ia32_stmxcsr();
  FlushSmall() { __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~FlushSmall() { __builtin_ia32_ldmxcsr(before); }
#endif
};

template <class T>
using Array = ffi::Buffer<Real<T>::dtype>;

}  // namespace
