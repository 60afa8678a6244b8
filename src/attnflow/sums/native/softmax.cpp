// The streamed softmax sum on the processor: for every query q_i, over keys k_j with biases b_j and values v_j,
//
//     log_sum_i = log sum_j e^{l_ij},    mean_i = sum_j e^{l_ij - log_sum_i} v_j,    l_ij = <q_i, k_j> + b_j.
//
// Query i sees the first seen_i keys; all of them if that is not given. With a number h the logits are l_ij = b_j - h |q_i - k_j|^2, from the
// differences: scalar products lose the digits of |q|^2 and |k|^2.
//
// Queries lie along the lanes of a vector register, everywhere. Maximum, sum and mean of a query then never leave its lane, keys and values
// are only ever broadcast, and both matrix products (keys with queries, values with weights) are one and the same small kernel.
// What a query gets depends on its own row and on the keys alone: not on its neighbors, and not on how many threads there are.

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "simd.h"

namespace {

// A block of the matrix product is ROWS broadcast numbers by COLS vectors: with one broadcast and COLS loads it fills the registers.
constexpr int ROWS = BYTES == 64 ? 8 : 4;
constexpr int COLS = 3;
// Keys in a tile: the weights of a block stay in the first-level cache.
constexpr int TILE = 128;
constexpr int MOST_BLOCKS = 8;

// COLS vectors side by side: one number for each query of a block.
template <class T>
struct Block {
  Vec<T> col[COLS];
};
template <class T>
constexpr int QUERIES = COLS * Simd<T>::lanes;
template <class T>
T& at(Block<T>& block, int64_t query) {
  return reinterpret_cast<T*>(&block)[query];
}

// c[r][.] += sum_k a[k][r] b[k][.]: the one matrix product.
template <class T, int R>
inline __attribute__((always_inline)) void product(const T* a, const Block<T>* b, int64_t depth, Vec<T> (&c)[R][COLS]) {
  for (int64_t k = 0; k < depth; k++) {
    Vec<T> x[COLS];
#pragma GCC unroll 8
    for (int i = 0; i < COLS; i++) x[i] = held(b[k].col[i]);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int i = 0; i < COLS; i++) c[r][i] += a[k * ROWS + r] * x[i];
  }
}

// c[r][.] += sum_k (a[k][r] - b[k][.])^2: squared distances.
template <class T, int R>
inline __attribute__((always_inline)) void distances(const T* a, const Block<T>* b, int64_t depth, Vec<T> (&c)[R][COLS]) {
  for (int64_t k = 0; k < depth; k++) {
    Vec<T> x[COLS];
#pragma GCC unroll 8
    for (int i = 0; i < COLS; i++) x[i] = held(b[k].col[i]);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int i = 0; i < COLS; i++) {
        Vec<T> gap = a[k * ROWS + r] - x[i];
        c[r][i] += gap * gap;
      }
  }
}

// Keys and values, cut into panels of ROWS numbers so that the product reads them in a row; filled up with keys without mass.
template <class T>
struct Keys {
  int64_t n, d, e, panels;    // n is filled up, and so is e to panels * ROWS
  T *keys, *biases, *values;  // values: for each tile, for each panel of columns, for each key of the tile, ROWS numbers
  T *longest, *highest;       // of each tile: the largest norm of a key, the largest bias
  const T* half;              // null for scalar products
};

// What is known of a block of queries so far.
template <class T>
struct State {
  Block<T>*queries, *mean;        // [d], [panels * ROWS]
  Bits<T> seen[COLS];             // how many keys the query sees
  int64_t fewest, most;           // of the block
  Block<T> norm, largest, total;  // the norm of the query, the running maximum of its logits, the sum relative to it
};

// Logits may pass the running maximum by this much before it is raised: it serves to keep e^x in range, for which it need not be exact.
constexpr int SLACK = 20;

// The queries for which a logit of the tile may pass the maximum by more than that, as far as |<q, k>| <= |q| |k| tells. After the first tile
// there are most often none, and nobody need look for the maximum.
template <class T>
bool may_pass(const State<T>& state, const Keys<T>& keys, int64_t tile, Bits<T> (&may)[COLS]) {
  Bits<T> some = {};
  for (int i = 0; i < COLS; i++)
    some |= may[i] = ~(state.norm.col[i] * keys.longest[tile] + keys.highest[tile] <= state.largest.col[i] + T(SLACK));
  return any<T>(some);
}

// Rare, and kept out of the loops that are not: in line it costs them registers.
template <class T>
__attribute__((noinline)) void raise(State<T>& state, const Block<T>* logits, int64_t count, const Bits<T> (&may)[COLS], int64_t rows) {
  for (int i = 0; i < COLS; i++) {
    Vec<T> largest = state.largest.col[i], peak = largest;
    for (int64_t j = 0; j < count; j++) peak = above(logits[j].col[i], peak);
    Bits<T> up = may[i] & (peak > largest + T(SLACK));
    if (!any<T>(up)) continue;
    // The others get the factor e^0 = 1, so no query notices its neighbors.
    state.largest.col[i] = up ? peak : largest;
    Vec<T> decay[1] = {largest - state.largest.col[i]};
    exponential<T>(decay);
    state.total.col[i] *= decay[0];
    for (int64_t r = 0; r < rows; r++) state.mean[r].col[i] *= decay[0];
  }
}

template <class T, int R>
void add_means(Block<T>* mean, const Block<T>* weights, const T* values, int64_t count) {
  Vec<T> sum[R][COLS]{};
  product<T, R>(values, weights, count, sum);
  for (int r = 0; r < R; r++)
    for (int i = 0; i < COLS; i++) mean[r].col[i] += sum[r][i];
}

// Logits become weights, and total and mean get the share of a tile.
template <class T>
void weigh(State<T>& state, Block<T>* logits, const T* values, int64_t count, int64_t e) {
  Vec<T> total[COLS]{};
  for (int64_t j = 0; j < count; j++) {
    Vec<T> p[COLS];
    for (int i = 0; i < COLS; i++) p[i] = logits[j].col[i] - state.largest.col[i];
    exponential<T>(p);
    for (int i = 0; i < COLS; i++) total[i] += logits[j].col[i] = p[i];
  }
  for (int i = 0; i < COLS; i++) state.total.col[i] += total[i];
  for (int64_t c = 0; c < e; c += ROWS) {
    Block<T>* mean = state.mean + c;
    const T* panel = values + c * count;
    if (e - c == 1) add_means<T, 1>(mean, logits, panel, count);
    else if (e - c == 2) add_means<T, 2>(mean, logits, panel, count);
    else if (e - c == 3) add_means<T, 3>(mean, logits, panel, count);
    else add_means<T, ROWS>(mean, logits, panel, count);
  }
}

// One tile of keys absorbed by a block of queries.
template <class T>
void absorb(State<T>& state, const Keys<T>& keys, int64_t first, Block<T>* logits) {
  using Int = typename Real<T>::Int;
  int64_t count = std::min<int64_t>(TILE, keys.n - first);
  Bits<T> may[COLS];
  bool search = may_pass(state, keys, first / TILE, may);
  for (int64_t j = 0; j < count; j += ROWS) {
    const T* rows = keys.keys + (first + j) * keys.d;
    if (keys.half != nullptr) {
      Vec<T> square[ROWS][COLS]{}, half = Vec<T>{} + *keys.half;
      distances<T, ROWS>(rows, state.queries, keys.d, square);
      for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < COLS; i++) logits[j + r].col[i] = keys.biases[first + j + r] - half * square[r][i];
      continue;
    }
    Vec<T> sum[ROWS][COLS];
    for (int r = 0; r < ROWS; r++)
      for (int i = 0; i < COLS; i++) sum[r][i] = Vec<T>{} + keys.biases[first + j + r];
    product<T, ROWS>(rows, state.queries, keys.d, sum);
    for (int r = 0; r < ROWS; r++)
      for (int i = 0; i < COLS; i++) logits[j + r].col[i] = sum[r][i];
  }
  if (state.fewest < first + count)
    for (int64_t j = 0; j < count; j++)
      for (int i = 0; i < COLS; i++) logits[j].col[i] = state.seen[i] > Int(first + j) ? logits[j].col[i] : Vec<T>{} + LOWEST<T>;
  if (search) raise(state, logits, count, may, keys.panels * ROWS);
  weigh(state, logits, keys.values + first * keys.panels * ROWS, count, keys.e);
}

template <class T>
void pack(Keys<T>& to, const T* k, const T* b, const T* v, int64_t n) {
  for (int64_t j = 0; j < to.n; j++) {
    T square = 0;
    for (int64_t c = 0; c < to.d && j < n; c++) square += k[j * to.d + c] * k[j * to.d + c];
    T &longest = to.longest[j / TILE], &highest = to.highest[j / TILE];
    if (j % TILE == 0) longest = 0, highest = LOWEST<T>;
    // Written so that a NaN stays: then any logit may pass. A squared distance only lowers a logit.
    if (to.half != nullptr && square == square) square = 0;
    if (!(std::sqrt(square) <= longest)) longest = std::sqrt(square);
    if (j < n && !(b[j] <= highest)) highest = b[j];
    to.biases[j] = j >= n || b[j] < LOWEST<T> ? LOWEST<T> : b[j];
    T* key = to.keys + j / ROWS * ROWS * to.d + j % ROWS;
    for (int64_t c = 0; c < to.d; c++) key[c * ROWS] = j < n ? k[j * to.d + c] : T(0);
    int64_t tile = j / TILE * TILE, count = std::min<int64_t>(TILE, to.n - tile);
    T* value = to.values + tile * to.panels * ROWS + (j - tile) * ROWS;
    for (int64_t c = 0; c < to.panels * ROWS; c++) value[c / ROWS * count * ROWS + c % ROWS] = j < n && c < to.e ? v[j * to.e + c] : T(0);
  }
}

// One sum, shared by the threads that work on it. A task is a few blocks of queries: while a tile of keys is in the cache, all of them use it.
template <class T>
struct Job {
  const T* q;
  const int32_t* seen;  // null if all keys are seen
  T *log_sum, *mean;
  int64_t m, blocks, tasks, workspace;
  Keys<T> keys;
  Room<T> packed{nullptr, std::free};
  Room<Block<T>> work{nullptr, std::free};
  std::atomic<int64_t> threads{0}, next{0};
  int64_t done = 0;
  std::mutex mutex;
  std::condition_variable all_done;

  // Takes tasks until there are none. A thread that comes when all are taken touches nothing but the counters.
  void help() {
    FlushSmall flush;
    Block<T>* mine = work.get() + threads++ * workspace;
    for (int64_t task; (task = next++) < tasks;) {
      // From the end: the queries that see most, if they are in order, are not left for last.
      run((tasks - 1 - task) * blocks * QUERIES<T>, mine);
      std::lock_guard lock(mutex);
      if (++done == tasks) all_done.notify_all();
    }
  }

  void run(int64_t first, Block<T>* mine) const {
    int64_t rows = keys.panels * ROWS, count = std::min(blocks, (m - first + QUERIES<T> - 1) / QUERIES<T>);
    Block<T>* logits = mine;
    State<T> states[MOST_BLOCKS];
    for (int64_t s = 0; s < count; s++) {
      states[s].queries = mine + TILE + s * (keys.d + rows);
      states[s].mean = states[s].queries + keys.d;
      start(states[s], first + s * QUERIES<T>);
    }
    for (int64_t j = 0; j < keys.n; j += TILE)
      for (int64_t s = 0; s < count; s++)
        if (j < states[s].most) absorb(states[s], keys, j, logits);
    for (int64_t s = 0; s < count; s++) finish(states[s], first + s * QUERIES<T>);
  }

  void start(State<T>& state, int64_t first) const {
    std::memset(state.mean, 0, keys.panels * ROWS * sizeof(Block<T>));
    // Past the last query the last one is repeated.
    for (int64_t i = 0; i < QUERIES<T>; i++)
      for (int64_t c = 0; c < keys.d; c++) at(state.queries[c], i) = q[std::min(first + i, m - 1) * keys.d + c];
    for (int i = 0; i < COLS; i++) {
      state.largest.col[i] = Vec<T>{} - std::numeric_limits<T>::infinity();
      state.norm.col[i] = state.total.col[i] = Vec<T>{};
      for (int64_t c = 0; c < keys.d; c++) state.norm.col[i] += state.queries[c].col[i] * state.queries[c].col[i];
    }
    state.fewest = keys.n, state.most = seen == nullptr ? keys.n : 0;
    for (int64_t i = 0; i < QUERIES<T>; i++) {
      at(state.norm, i) = std::sqrt(at(state.norm, i));
      int64_t sees = seen == nullptr ? keys.n : std::clamp<int64_t>(seen[std::min(first + i, m - 1)], 0, keys.n);
      state.seen[i / Simd<T>::lanes][i % Simd<T>::lanes] = sees;
      state.fewest = std::min(state.fewest, sees), state.most = std::max(state.most, sees);
    }
  }

  void finish(State<T>& state, int64_t first) const {
    for (int64_t i = 0; i < QUERIES<T> && first + i < m; i++) {
      T largest = at(state.largest, i), total = at(state.total, i);
      // No key has mass: the sum is zero, and so is the mean. (Not if the total is NaN: then something else is wrong.)
      bool none = largest < LOWEST<T> / 2 && total >= 0;
      log_sum[first + i] = none ? -std::numeric_limits<T>::infinity() : largest + std::log(total);
      for (int64_t c = 0; c < keys.e; c++) mean[(first + i) * keys.e + c] = none ? T(0) : at(state.mean[c], i) / total;
    }
  }
};

template <class T>
ffi::Error softmax(ffi::ThreadPool pool, int64_t threads, Array<T> q, Array<T> k, Array<T> b, Array<T> v, ffi::Buffer<ffi::DataType::S32> seen,
                   Array<T> half, ffi::Result<Array<T>> log_sum, ffi::Result<Array<T>> mean) try {
  auto qs = q.dimensions(), ks = k.dimensions(), vs = v.dimensions();
  if (qs.size() != 2 || ks.size() != 2 || vs.size() != 2 || qs[1] != ks[1] || ks[0] != vs[0] || int64_t(b.element_count()) != ks[0])
    return ffi::Error::InvalidArgument("softmax wants q[m, d], k[n, d], b[n], v[n, e]");
  int64_t given = seen.element_count();
  if (given != 0 && given != qs[0]) return ffi::Error::InvalidArgument("softmax wants one seen[m] a query, or none");
  int64_t m = qs[0], d = ks[1], n = up_to(ks[0], ROWS), e = vs[1], rows = up_to(e, ROWS);
  if (m == 0) return ffi::Error::Success();

  auto job = std::make_shared<Job<T>>();
  job->q = q.typed_data(), job->log_sum = log_sum->typed_data(), job->mean = mean->typed_data(), job->m = m;
  job->seen = given == 0 ? nullptr : seen.typed_data();
  int64_t tiles = (n + TILE - 1) / TILE;
  job->packed = room<T>(n * (d + 1 + rows) + 2 * tiles);
  T* packed = job->packed.get();
  T* bounds = packed + n * (d + 1 + rows);
  job->keys = {n, d, e, rows / ROWS, packed, packed + n * d, packed + n * (d + 1), bounds, bounds + tiles,
               half.element_count() == 0 ? nullptr : half.typed_data()};
  pack(job->keys, k.typed_data(), b.typed_data(), v.typed_data(), ks[0]);

  if (threads <= 0) threads = std::max<int64_t>(1, pool.num_threads());
  int64_t blocks = up_to(m, QUERIES<T>) / QUERIES<T>;
  // As many blocks in a task as the second-level cache holds with a tile of keys, but something to do for every thread.
  int64_t fit = (1 << 19) / ((d + rows) * int64_t(sizeof(Block<T>)) + 1);
  job->blocks = std::max<int64_t>(1, std::min({int64_t(MOST_BLOCKS), fit, blocks / (4 * threads)}));
  job->tasks = (blocks + job->blocks - 1) / job->blocks;
  threads = std::min(threads, job->tasks);
  job->workspace = TILE + job->blocks * (d + rows);
  job->work = room<Block<T>>(threads * job->workspace);
  // This thread works too, and waits only for tasks that others have begun: the pool may be busy, or this thread one of its own.
  for (int64_t i = 1; i < threads; i++) pool.Schedule([job] { job->help(); });
  job->help();
  std::unique_lock lock(job->mutex);
  job->all_done.wait(lock, [&] { return job->done == job->tasks; });
  return ffi::Error::Success();
} catch (const std::bad_alloc&) {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "softmax: no memory for a copy of the keys and values");
}

template <class T>
auto signature() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .template Attr<int64_t>("threads")
      .template Arg<Array<T>>()
      .template Arg<Array<T>>()
      .template Arg<Array<T>>()
      .template Arg<Array<T>>()
      .template Arg<ffi::Buffer<ffi::DataType::S32>>()
      .template Arg<Array<T>>()
      .template Ret<Array<T>>()
      .template Ret<Array<T>>();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(attnflow_softmax_float32, softmax<float>, signature<float>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(attnflow_softmax_float64, softmax<double>, signature<double>());
