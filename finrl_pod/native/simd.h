// Short vectors in the language's own terms (GCC's and Clang's vector extension), and functions of them.
// A Lane<T, W> has W numbers of type T; every operation is lane by lane. NaN goes through all of them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __SSE__
#include <immintrin.h>
#endif

// While it lives, numbers too small to be normal (below 1.2e-38 in float32) are zero, in the thread that made it. A weight
// that gets no gradient any more has moments that decay into them and stay there, and on Intel's processors each such
// number takes a hundred cycles.
struct TinyIsZero {
#ifdef __SSE__
  const unsigned before = _mm_getcsr();
  TinyIsZero() { _mm_setcsr(before | 0x8040); }
  ~TinyIsZero() { _mm_setcsr(before); }
#else
  TinyIsZero() {}
#endif
  TinyIsZero(const TinyIsZero&) = delete;
};

template <class T, int W>
struct Lane {
  typedef T vector __attribute__((vector_size(sizeof(T) * W)));
};
template <class T, int W>
using lane = typename Lane<T, W>::vector;

template <class T, int W>
static inline lane<T, W> load(const T* from) {
  lane<T, W> x;
  memcpy(&x, from, sizeof x);
  return x;
}
template <class T, int W>
static inline void store(T* to, lane<T, W> x) {
  memcpy(to, &x, sizeof x);
}
template <class T, int W>
static inline lane<T, W> all(T value) {
  return lane<T, W>{} + value;
}
// max(x, least) and min(x, most); where x is NaN it stays, as it does in the AVX instructions, which keep the second.
template <class V>
static inline V at_least(V x, V least) {
  return x < least ? least : x;
}
template <class V>
static inline V at_most(V x, V most) {
  return x > most ? most : x;
}
template <class V>
static inline V floored(V x) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); i++) x[i] = std::floor(x[i]);
  return x;
}
template <class V>
static inline V truncated(V x) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); i++) x[i] = std::trunc(x[i]);
  return x;
}
#ifdef __AVX__
static inline lane<float, 8> at_least(lane<float, 8> x, lane<float, 8> least) { return _mm256_max_ps(least, x); }
static inline lane<float, 8> at_most(lane<float, 8> x, lane<float, 8> most) { return _mm256_min_ps(most, x); }
static inline lane<double, 4> at_least(lane<double, 4> x, lane<double, 4> least) { return _mm256_max_pd(least, x); }
static inline lane<double, 4> at_most(lane<double, 4> x, lane<double, 4> most) { return _mm256_min_pd(most, x); }
static inline lane<float, 8> floored(lane<float, 8> x) { return _mm256_floor_ps(x); }
static inline lane<double, 4> floored(lane<double, 4> x) { return _mm256_floor_pd(x); }
static inline lane<float, 8> truncated(lane<float, 8> x) { return _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
static inline lane<double, 4> truncated(lane<double, 4> x) { return _mm256_round_pd(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
#endif
template <class T, int W>
static inline T largest(lane<T, W> x) {
  T most = x[0];
  for (int i = 1; i < W; i++) most = x[i] < most ? most : x[i];
  return most;
}

// Numbers of two vectors by their places in both: each compiler has its own name for it.
#ifdef __clang__
#define picked(a, b, I, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define picked(a, b, I, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})
#endif

// The sums of W vectors, as one vector: the i-th number is the sum of x[i]. Adds neighbours, then halves.
static inline lane<float, 8> sums(const lane<float, 8>* x) {
  typedef lane<float, 8> V;
  typedef lane<int32_t, 8> I;
  auto pairs = [](V a, V b) {
    return picked(a, b, I, 0, 2, 8, 10, 4, 6, 12, 14) + picked(a, b, I, 1, 3, 9, 11, 5, 7, 13, 15);
  };
  V a = pairs(pairs(x[0], x[1]), pairs(x[2], x[3])), b = pairs(pairs(x[4], x[5]), pairs(x[6], x[7]));
  return picked(a, b, I, 0, 1, 2, 3, 8, 9, 10, 11) + picked(a, b, I, 4, 5, 6, 7, 12, 13, 14, 15);
}
static inline lane<double, 4> sums(const lane<double, 4>* x) {
  typedef lane<double, 4> V;
  typedef lane<int64_t, 4> I;
  auto pairs = [](V a, V b) { return picked(a, b, I, 0, 4, 2, 6) + picked(a, b, I, 1, 5, 3, 7); };
  V a = pairs(x[0], x[1]), b = pairs(x[2], x[3]);
  return picked(a, b, I, 0, 1, 4, 5) + picked(a, b, I, 2, 3, 6, 7);
}
static inline lane<float, 1> sums(const lane<float, 1>* x) { return x[0]; }
static inline lane<double, 1> sums(const lane<double, 1>* x) { return x[0]; }

// e^x, after Cephes: 2^k times a polynomial of what is left, |error| about 1 unit in the last place.
template <int W>
static inline lane<float, W> exponential(lane<float, W> x) {
  typedef lane<float, W> V;
  typedef lane<int32_t, W> I;
  V bounded = at_most(at_least(x, all<float, W>(-87.0f)), all<float, W>(88.0f));
  V shifted = bounded * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  V k = shifted - 12582912.0f;
  V r = bounded - k * 0.693359375f + k * 2.12194440e-4f;
  V p = all<float, W>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  I power = (__builtin_convertvector(k, I) + 127) << 23;
  V scale;
  memcpy(&scale, &power, sizeof scale);
  V value = p * scale;
  value = x < -87.0f ? V{} : value;
  return x != x ? x : value;
}
template <int W>
static inline lane<double, W> exponential(lane<double, W> x) {
  for (int i = 0; i < W; i++) x[i] = std::exp(x[i]);
  return x;
}

// log x for x > 0 and normal, after Cephes; NaN stays.
template <int W>
static inline lane<float, W> logarithm(lane<float, W> x) {
  typedef lane<float, W> V;
  typedef lane<int32_t, W> I;
  I bits;
  memcpy(&bits, &x, sizeof bits);
  I exponent = ((bits >> 23) & 255) - 126;
  bits = (bits & 0x007fffff) | 0x3f000000;
  V m;
  memcpy(&m, &bits, sizeof m);  // in [0.5, 1)
  I small = m < 0.707106781f;
  V e = __builtin_convertvector(exponent + small, V);  // a true comparison is -1
  m = small ? m + m - 1.0f : m - 1.0f;
  V z = m * m;
  V p = all<float, W>(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  V y = p * m * z + e * -2.12194440e-4f - 0.5f * z;
  V value = m + y + e * 0.693359375f;
  return x != x ? x : value;
}
template <int W>
static inline lane<double, W> logarithm(lane<double, W> x) {
  for (int i = 0; i < W; i++) x[i] = std::log(x[i]);
  return x;
}

// tanh, the rational approximation that Eigen uses: a few units in the last place, exactly odd, NaN stays.
template <int W>
static inline lane<float, W> tangent(lane<float, W> x) {
  typedef lane<float, W> V;
  const float most = 7.90531110763549805f;
  V b = at_most(at_least(x, all<float, W>(-most)), all<float, W>(most));
  V s = b * b;
  V p = all<float, W>(-2.76076847742355e-16f);
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  V q = all<float, W>(1.19825839466702e-06f);
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return b * p / q;
}
