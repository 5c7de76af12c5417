// Matrix products in float32: one register-blocked kernel and two ways to run it. `matmul` is for small matrices whose
// factors stay in the nearest caches, `matmul_packed` for matrices of any size and layout. The order in which a number
// is summed does not depend on the number of threads.
#pragma once
#include <omp.h>

#include <algorithm>
#include <vector>

#include "simd.h"

// Rounds up to whole vectors of eight.
static inline int64_t padded(int64_t n) { return (n + 7) / 8 * 8; }

// A factor: element (i, j) is data[i * row_stride + j * column_stride].
struct Matrix {
  const float* data;
  int64_t row_stride, column_stride;
};

// The part of the result that the registers hold: rows, and numbers in each of the two vectors of a row.
#ifdef __AVX512F__
constexpr int BLOCK_ROWS = 12, VECTOR = 16;
#else
constexpr int BLOCK_ROWS = 6, VECTOR = 8;
#endif
constexpr int BLOCK_COLUMNS = 2 * VECTOR;

// What the product is added to: nothing, the result's present content, or one row that is the same for all rows.
enum Initial { ZERO, PRESENT, ROW };

// R rows and C vectors of W numbers of c: many sums in registers hide the latency of a multiply-add.
template <int R, int C, int W, Initial INITIAL>
static inline void matmul_block(Matrix a, const float* b, int64_t ldb, const float* row, float* c, int64_t ldc,
                                int64_t k) {
  typedef vec<float, W> V;
  V sum[R][C];
#pragma GCC unroll 12
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int j = 0; j < C; j++) sum[i][j] = V{};
  for (int64_t x = 0; x < k; x++) {
    V right[C];
#pragma GCC unroll 2
    for (int j = 0; j < C; j++) right[j] = load<float, W>(b + x * ldb + j * W);
#pragma GCC unroll 12
    for (int i = 0; i < R; i++) {
      const float left = a.data[i * a.row_stride + x * a.column_stride];
#pragma GCC unroll 2
      for (int j = 0; j < C; j++) sum[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int j = 0; j < C; j++) {  // the initial value is added last: only the sums occupy registers in the loop
      float* to = c + i * ldc + j * W;
      if (INITIAL != ZERO) sum[i][j] += load<float, W>(INITIAL == PRESENT ? to : row + j * W);
      store<float, W>(to, sum[i][j]);
    }
}

template <int R, Initial INITIAL>
static void matmul_rows(Matrix a, const float* b, int64_t ldb, const float* row, float* c, int64_t ldc, int64_t n,
                        int64_t k) {
  int64_t j = 0;
  for (; j + BLOCK_COLUMNS <= n; j += BLOCK_COLUMNS)
    matmul_block<R, 2, VECTOR, INITIAL>(a, b + j, ldb, row + j, c + j, ldc, k);
  if (j + VECTOR <= n) matmul_block<R, 1, VECTOR, INITIAL>(a, b + j, ldb, row + j, c + j, ldc, k), j += VECTOR;
  if (j < n) matmul_block<R, 1, 8, INITIAL>(a, b + j, ldb, row + j, c + j, ldc, k);
}

// c [m, n] = a [m, k] b [k, n] + initial value. n is a multiple of 8, and b is zero in padded columns; row [n] is read
// only for ROW.
template <Initial INITIAL>
static void matmul(Matrix a, const float* b, int64_t ldb, const float* row, float* c, int64_t ldc, int64_t m, int64_t n,
                   int64_t k) {
  if (INITIAL != ROW) row = b;  // never read, but advanced with the columns
  int64_t i = 0;
  auto from = [&](int64_t r) { return Matrix{a.data + r * a.row_stride, a.row_stride, a.column_stride}; };
  for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS)
    matmul_rows<BLOCK_ROWS, INITIAL>(from(i), b, ldb, row, c + i * ldc, ldc, n, k);
  if (BLOCK_ROWS > 6 && i + 6 <= m) matmul_rows<6, INITIAL>(from(i), b, ldb, row, c + i * ldc, ldc, n, k), i += 6;
  switch (m - i) {
    case 5:
      return matmul_rows<5, INITIAL>(from(i), b, ldb, row, c + i * ldc, ldc, n, k);
    case 4:
      return matmul_rows<4, INITIAL>(from(i), b, ldb, row, c + i * ldc, ldc, n, k);
    case 3:
      return matmul_rows<3, INITIAL>(from(i), b, ldb, row, c + i * ldc, ldc, n, k);
    case 2:
      return matmul_rows<2, INITIAL>(from(i), b, ldb, row, c + i * ldc, ldc, n, k);
    case 1:
      return matmul_rows<1, INITIAL>(from(i), b, ldb, row, c + i * ldc, ldc, n, k);
  }
}

constexpr int64_t PANEL_DEPTH = 512;             // of k at a time: a panel of b stays in the nearest cache
constexpr int64_t THREAD_ROWS = 8 * BLOCK_ROWS;  // rows that one thread takes at a time
constexpr int64_t MIN_SHARED_PRODUCT = 1 << 24;  // multiplications below which one thread is faster than several

// One block of `height` rows (R at most) and n columns of c, c[i, j] at c[i * row_stride + j * column_stride].
template <int R>
static inline void packed_block(int64_t height, Matrix a, const float* panel, int64_t depth, float* c,
                                int64_t row_stride, int64_t column_stride, int64_t n, bool add) {
  if constexpr (R > 1)
    if (height < R) return packed_block<R - 1>(height, a, panel, depth, c, row_stride, column_stride, n, add);
  if (column_stride == 1 && n == BLOCK_COLUMNS) {
    if (add) return matmul_block<R, 2, VECTOR, PRESENT>(a, panel, BLOCK_COLUMNS, nullptr, c, row_stride, depth);
    return matmul_block<R, 2, VECTOR, ZERO>(a, panel, BLOCK_COLUMNS, nullptr, c, row_stride, depth);
  }
  float block[R * BLOCK_COLUMNS];
  matmul_block<R, 2, VECTOR, ZERO>(a, panel, BLOCK_COLUMNS, nullptr, block, BLOCK_COLUMNS, depth);
  for (int i = 0; i < R; i++)
    for (int64_t j = 0; j < n; j++) {
      float* to = c + i * row_stride + j * column_stride;
      *to = add ? *to + block[i * BLOCK_COLUMNS + j] : block[i * BLOCK_COLUMNS + j];
    }
}

// c [m, 1] = a [m, k] b [k, 1] for an a with contiguous rows or columns: a critic's output layer.
static inline void matrix_times_vector(int64_t m, int64_t k, Matrix a, Matrix b, float* c, int64_t row_stride) {
  static thread_local std::vector<float> right, out;
  right.resize(k), out.assign(m, 0);
  for (int64_t x = 0; x < k; x++) right[x] = b.data[x * b.row_stride];
  if (a.column_stride == 1)
    for (int64_t i = 0; i < m; i++) {
      const float* left = a.data + i * a.row_stride;
      vec<float, VECTOR> sums = {};
      int64_t x = 0;
      for (; x + VECTOR <= k; x += VECTOR)
        sums += load<float, VECTOR>(left + x) * load<float, VECTOR>(right.data() + x);
      float sum = 0;
      for (; x < k; x++) sum += left[x] * right[x];
      for (int j = 0; j < VECTOR; j++) sum += sums[j];
      out[i] = sum;
    }
  else
    for (int64_t x = 0; x < k; x++) {
      const float* left = a.data + x * a.column_stride;
      for (int64_t i = 0; i < m; i++) out[i] += left[i] * right[x];
    }
  for (int64_t i = 0; i < m; i++) c[i * row_stride] = out[i];
}

// c [m, n] = a [m, k] b [k, n] in any layout; c[i, j] at c[i * row_stride + j * column_stride]. b is copied into panels
// of BLOCK_COLUMNS columns first; large products are shared among threads.
static inline void matmul_packed(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, float* c, int64_t row_stride,
                                 int64_t column_stride) {
  if (n == 1 && (a.column_stride == 1 || a.row_stride == 1)) return matrix_times_vector(m, k, a, b, c, row_stride);
  if (n < VECTOR && m > n) {  // the transposed product has whole vectors
    std::swap(m, n), std::swap(a, b), std::swap(row_stride, column_stride);
    std::swap(a.row_stride, a.column_stride), std::swap(b.row_stride, b.column_stride);
  }
  static thread_local std::vector<float> packed;
  const int64_t panels = (n + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
  for (int64_t from = 0; from < k; from += PANEL_DEPTH) {
    const int64_t depth = std::min(PANEL_DEPTH, k - from);
    packed.resize(panels * depth * BLOCK_COLUMNS);
    if (n % BLOCK_COLUMNS) std::fill(packed.end() - depth * BLOCK_COLUMNS, packed.end(), 0.f);
    for (int64_t p = 0; p < panels; p++) {
      float* to = packed.data() + p * depth * BLOCK_COLUMNS;
      const int64_t columns = std::min<int64_t>(BLOCK_COLUMNS, n - p * BLOCK_COLUMNS);
      const float* data = b.data + from * b.row_stride + p * BLOCK_COLUMNS * b.column_stride;
      if (b.column_stride == 1)
        for (int64_t x = 0; x < depth; x++)
          std::copy(data + x * b.row_stride, data + x * b.row_stride + columns, to + x * BLOCK_COLUMNS);
      else
        for (int64_t j = 0; j < columns; j++)
          for (int64_t x = 0; x < depth; x++) to[x * BLOCK_COLUMNS + j] = data[x * b.row_stride + j * b.column_stride];
    }
    const float* const panels_of_b = packed.data();
    const bool shared = m * n * depth > MIN_SHARED_PRODUCT && !omp_in_parallel();
#pragma omp parallel for schedule(static) if (shared)
    for (int64_t first = 0; first < m; first += THREAD_ROWS) {
      const FlushDenormals flush;
      static thread_local std::vector<float> rows;
      rows.resize(depth * BLOCK_ROWS);
      for (int64_t i = first; i < std::min(first + THREAD_ROWS, m); i += BLOCK_ROWS) {
        const int64_t height = std::min<int64_t>(BLOCK_ROWS, m - i);
        const float* data = a.data + i * a.row_stride + from * a.column_stride;
        Matrix left{data, a.row_stride, 1};
        if (a.column_stride != 1) {  // a transposed factor: gathered once, then read in order
          for (int64_t x = 0; x < depth; x++)
            for (int64_t r = 0; r < height; r++)
              rows[x * BLOCK_ROWS + r] = data[r * a.row_stride + x * a.column_stride];
          left = {rows.data(), 1, BLOCK_ROWS};
        }
        for (int64_t p = 0; p < panels; p++) {
          const float* panel = panels_of_b + p * depth * BLOCK_COLUMNS;
          float* to = c + i * row_stride + p * BLOCK_COLUMNS * column_stride;
          const int64_t columns = std::min<int64_t>(BLOCK_COLUMNS, n - p * BLOCK_COLUMNS);
          packed_block<BLOCK_ROWS>(height, left, panel, depth, to, row_stride, column_stride, columns, from);
        }
      }
    }
  }
}
