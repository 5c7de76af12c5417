// Writes flat observations: for each account its own numbers, then the row of the market table of its group's bar. They
// are written past the cache where the processor can: megabytes of rows would evict the accounts, which are read again,
// and are themselves evicted before anything reads them.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "simd.h"

constexpr int64_t ROWS = 8;  // written at a time: of any width, a whole number of vectors of eight

static void copy_past_cache(const float* from, float* to, int64_t count) {
#ifdef __AVX__
  if (reinterpret_cast<uintptr_t>(to) % 32 == 0) {
    for (int64_t i = 0; i < count; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
    return;
  }
#endif
  std::copy(from, from + count, to);
}

// table: [T, width]; bar: [groups]; account: [groups * accounts, own]; out: [groups * accounts, own + width]
extern "C" void flat_rows(const float* table, int64_t width, const int64_t* bar, int64_t groups, int64_t accounts,
                          const float* account, int64_t own, float* out) {
  const int64_t rows = groups * accounts, whole = own + width, blocks = (rows + ROWS - 1) / ROWS;
#pragma omp parallel if (rows * whole > 65536)
  {
    std::vector<float> block(ROWS * whole);
#pragma omp for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t first = b * ROWS, count = std::min(ROWS, rows - first);
      for (int64_t i = 0; i < count; i++) {
        const int64_t e = first + i;
        float* row = block.data() + i * whole;
        std::copy(account + e * own, account + (e + 1) * own, row);
        const float* features = table + bar[e / accounts] * width;
        std::copy(features, features + width, row + own);
      }
      if (count == ROWS)
        copy_past_cache(block.data(), out + first * whole, ROWS * whole);
      else
        std::copy(block.begin(), block.begin() + count * whole, out + first * whole);
    }
#ifdef __AVX__
    _mm_sfence();
#endif
  }
}
