// Products of small matrices whose factors stay in the nearest caches. Columns of the right factor and of the result
// come in whole vectors: `n` is a multiple of 8, what is padded must be zero in the right factor.
#pragma once
#include "simd.h"

// What the sums begin with: nothing, what is in c already, or one row that all rows of c begin with.
enum Start { ZERO, SUM, ROW };

static inline int64_t padded(int64_t n) { return (n + 7) / 8 * 8; }

// The left factor [m, k], read at at[i * rows + x * columns]; columns = 1 is plain, rows = 1 transposed.
struct Left {
  const float* at;
  int64_t rows, columns;
};

// A block of the result that the registers hold: rows, and numbers in each of the two vectors of a row.
#ifdef __AVX512F__
constexpr int TALL = 12, WIDE = 16;
#else
constexpr int TALL = 6, WIDE = 8;
#endif

// R rows and C vectors of W numbers of c at a time: many sums in registers hide the latency of a multiply-add.
template <int R, int C, int W, Start START>
static inline void block(Left a, const float* b, int64_t ldb, const float* first, float* c, int64_t ldc, int64_t k) {
  typedef lane<float, W> V;
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
      const float left = a.at[i * a.rows + x * a.columns];
#pragma GCC unroll 2
      for (int j = 0; j < C; j++) sum[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; i++)
#pragma GCC unroll 2
    for (int j = 0; j < C; j++) {  // begun at zero and added last: nothing but the sums lives through the loop
      float* to = c + i * ldc + j * W;
      if (START != ZERO) sum[i][j] += load<float, W>(START == SUM ? to : first + j * W);
      store<float, W>(to, sum[i][j]);
    }
}

template <int R, Start START>
static void strip(Left a, const float* b, int64_t ldb, const float* first, float* c, int64_t ldc, int64_t n, int64_t k) {
  int64_t j = 0;
  for (; j + 2 * WIDE <= n; j += 2 * WIDE) block<R, 2, WIDE, START>(a, b + j, ldb, first + j, c + j, ldc, k);
  if (j + WIDE <= n) block<R, 1, WIDE, START>(a, b + j, ldb, first + j, c + j, ldc, k), j += WIDE;
  if (j < n) block<R, 1, 8, START>(a, b + j, ldb, first + j, c + j, ldc, k);
}

// c [m, n] = a [m, k] b [k, n], plus what it starts from; `first` [n] is read where that is a row.
template <Start START>
static void product(Left a, const float* b, int64_t ldb, const float* first, float* c, int64_t ldc, int64_t m, int64_t n,
                    int64_t k) {
  if (START != ROW) first = b;  // never read, but moved along
  int64_t i = 0;
  auto from = [&](int64_t row) { return Left{a.at + row * a.rows, a.rows, a.columns}; };
  for (; i + TALL <= m; i += TALL) strip<TALL, START>(from(i), b, ldb, first, c + i * ldc, ldc, n, k);
  if (TALL > 6 && i + 6 <= m) strip<6, START>(from(i), b, ldb, first, c + i * ldc, ldc, n, k), i += 6;
  switch (m - i) {
    case 5: return strip<5, START>(from(i), b, ldb, first, c + i * ldc, ldc, n, k);
    case 4: return strip<4, START>(from(i), b, ldb, first, c + i * ldc, ldc, n, k);
    case 3: return strip<3, START>(from(i), b, ldb, first, c + i * ldc, ldc, n, k);
    case 2: return strip<2, START>(from(i), b, ldb, first, c + i * ldc, ldc, n, k);
    case 1: return strip<1, START>(from(i), b, ldb, first, c + i * ldc, ldc, n, k);
  }
}
