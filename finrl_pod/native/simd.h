// Short vectors, by the vector extension of GCC and Clang, and functions of them. A vec<T, W> holds W numbers of type
// T; every operation works number by number. NaN propagates, except in max and min.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __SSE__
#include <immintrin.h>
#endif

// Work on fewer numbers than this is faster on one thread than shared among several.
constexpr int64_t MIN_PARALLEL_SIZE = 8192;

// While an object lives, denormal numbers (below 1.2e-38 in float32) are read and written as zero in its thread. Adam's
// moments of a weight that no longer gets a gradient decay into that range and stay there, and on Intel processors an
// operation on each of them costs about a hundred cycles.
struct FlushDenormals {
#ifdef __SSE__
  const unsigned before = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(before | 0x8040); }  // flush to zero, denormals are zero
  ~FlushDenormals() { _mm_setcsr(before); }
#else
  FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
};

template <class T, int W>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * W)));
};
template <class T, int W>
using vec = typename VectorOf<T, W>::type;

template <class T, int W>
static inline vec<T, W> load(const T* from) {
  vec<T, W> x;
  memcpy(&x, from, sizeof x);
  return x;
}
template <class T, int W>
static inline void store(T* to, vec<T, W> x) {
  memcpy(to, &x, sizeof x);
}
template <class T, int W>
static inline vec<T, W> broadcast(T value) {
  return vec<T, W>{} + value;
}

// The second number where either is NaN.
template <class V>
static inline V max(V a, V b) {
  return a > b ? a : b;
}
template <class V>
static inline V min(V a, V b) {
  return a < b ? a : b;
}

// max(x, lower) and min(x, upper). NaN in x stays, as in the AVX instructions, which return their second operand.
template <class V>
static inline V clamp_min(V x, V lower) {
  return x < lower ? lower : x;
}
template <class V>
static inline V clamp_max(V x, V upper) {
  return x > upper ? upper : x;
}
template <class V>
static inline V floor(V x) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); i++) x[i] = std::floor(x[i]);
  return x;
}
template <class V>
static inline V trunc(V x) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); i++) x[i] = std::trunc(x[i]);
  return x;
}
#ifdef __AVX__
static inline vec<float, 8> clamp_min(vec<float, 8> x, vec<float, 8> lower) { return _mm256_max_ps(lower, x); }
static inline vec<float, 8> clamp_max(vec<float, 8> x, vec<float, 8> upper) { return _mm256_min_ps(upper, x); }
static inline vec<double, 4> clamp_min(vec<double, 4> x, vec<double, 4> lower) { return _mm256_max_pd(lower, x); }
static inline vec<double, 4> clamp_max(vec<double, 4> x, vec<double, 4> upper) { return _mm256_min_pd(upper, x); }
static inline vec<float, 8> floor(vec<float, 8> x) { return _mm256_floor_ps(x); }
static inline vec<double, 4> floor(vec<double, 4> x) { return _mm256_floor_pd(x); }
constexpr int TOWARDS_ZERO = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
static inline vec<float, 8> trunc(vec<float, 8> x) { return _mm256_round_ps(x, TOWARDS_ZERO); }
static inline vec<double, 4> trunc(vec<double, 4> x) { return _mm256_round_pd(x, TOWARDS_ZERO); }
#endif
template <class T, int W>
static inline T horizontal_max(vec<T, W> x) {
  T highest = x[0];
  for (int i = 1; i < W; i++) highest = x[i] < highest ? highest : x[i];
  return highest;
}

// Numbers of two vectors by their positions, the second vector's following the first's; I: vector of indices.
#ifdef __clang__
#define SHUFFLE(a, b, I, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, I, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})
#endif

// The sums of W vectors as one vector: number i is the sum of x[i]. Adds neighbours first, then halves.
static inline vec<float, 8> horizontal_sums(const vec<float, 8>* x) {
  typedef vec<float, 8> V;
  typedef vec<int32_t, 8> I;
  auto add_pairs = [](V a, V b) {
    return SHUFFLE(a, b, I, 0, 2, 8, 10, 4, 6, 12, 14) + SHUFFLE(a, b, I, 1, 3, 9, 11, 5, 7, 13, 15);
  };
  V a = add_pairs(add_pairs(x[0], x[1]), add_pairs(x[2], x[3]));
  V b = add_pairs(add_pairs(x[4], x[5]), add_pairs(x[6], x[7]));
  return SHUFFLE(a, b, I, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(a, b, I, 4, 5, 6, 7, 12, 13, 14, 15);
}
static inline vec<double, 4> horizontal_sums(const vec<double, 4>* x) {
  typedef vec<double, 4> V;
  typedef vec<int64_t, 4> I;
  auto add_pairs = [](V a, V b) { return SHUFFLE(a, b, I, 0, 4, 2, 6) + SHUFFLE(a, b, I, 1, 5, 3, 7); };
  V a = add_pairs(x[0], x[1]), b = add_pairs(x[2], x[3]);
  return SHUFFLE(a, b, I, 0, 1, 4, 5) + SHUFFLE(a, b, I, 2, 3, 6, 7);
}
static inline vec<float, 1> horizontal_sums(const vec<float, 1>* x) { return x[0]; }
static inline vec<double, 1> horizontal_sums(const vec<double, 1>* x) { return x[0]; }

// 2^x for -126 <= x <= 127 after Cephes (exp2f): 2^k times a polynomial of the remainder; |error| about 1 unit in the
// last place.
template <int W>
static inline vec<float, W> exp2_in_range(vec<float, W> x) {
  typedef vec<float, W> V;
  typedef vec<int32_t, W> I;
  V shifted = x + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, which its lowest bits hold
  V r = x - (shifted - 12582912.0f);
  V p = broadcast<float, W>(1.535336188319500e-4f);
  p = p * r + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
  I power;
  memcpy(&power, &shifted, sizeof power);
  power = (power << 23) + (127 << 23);
  V scale;
  memcpy(&scale, &power, sizeof scale);
  return p * scale;
}
// The same for -1022 <= x <= 1023, by the Taylor series.
template <int W>
static inline vec<double, W> exp2_in_range(vec<double, W> x) {
  typedef vec<double, W> V;
  typedef vec<int64_t, W> I;
  V shifted = x + 6755399441055744.0;  // 1.5 * 2^52
  V r = (x - (shifted - 6755399441055744.0)) * 0.69314718055994530942;
  V p = broadcast<double, W>(1.6059043836821615e-10);  // 1 / 13!
  p = p * r + 2.0876756987868099e-09;
  p = p * r + 2.5052108385441719e-08;
  p = p * r + 2.7557319223985891e-07;
  p = p * r + 2.7557319223985893e-06;
  p = p * r + 2.4801587301587302e-05;
  p = p * r + 1.9841269841269841e-04;
  p = p * r + 1.3888888888888889e-03;
  p = p * r + 8.3333333333333333e-03;
  p = p * r + 4.1666666666666667e-02;
  p = p * r + 1.6666666666666667e-01;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  I power;
  memcpy(&power, &shifted, sizeof power);
  power = (power << 52) + (int64_t(1023) << 52);
  V scale;
  memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

// e^x after Cephes (expf): 2^k times a polynomial of the remainder; |error| about 1 unit in the last place.
template <int W>
static inline vec<float, W> exp(vec<float, W> x) {
  typedef vec<float, W> V;
  typedef vec<int32_t, W> I;
  V bounded = clamp_max(clamp_min(x, broadcast<float, W>(-87.0f)), broadcast<float, W>(88.0f));
  V shifted = bounded * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  V k = shifted - 12582912.0f;
  V r = bounded - k * 0.693359375f + k * 2.12194440e-4f;
  V p = broadcast<float, W>(1.9875691500e-4f);
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
static inline vec<double, W> exp(vec<double, W> x) {
  for (int i = 0; i < W; i++) x[i] = std::exp(x[i]);
  return x;
}

// Natural logarithm of x > 0 and normal, after Cephes (logf).
template <int W>
static inline vec<float, W> log(vec<float, W> x) {
  typedef vec<float, W> V;
  typedef vec<int32_t, W> I;
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
  V p = broadcast<float, W>(7.0376836292e-2f);
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
static inline vec<double, W> log(vec<double, W> x) {
  for (int i = 0; i < W; i++) x[i] = std::log(x[i]);
  return x;
}

// tanh by the rational approximation of Eigen: error of a few units in the last place, exactly odd.
template <int W>
static inline vec<float, W> tanh(vec<float, W> x) {
  typedef vec<float, W> V;
  const float saturation = 7.90531110763549805f;  // beyond it tanh is 1 in float32
  V b = clamp_max(clamp_min(x, broadcast<float, W>(-saturation)), broadcast<float, W>(saturation));
  V s = b * b;
  V p = broadcast<float, W>(-2.76076847742355e-16f);
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  V q = broadcast<float, W>(1.19825839466702e-06f);
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return b * p / q;
}
// tanh after Cephes: a rational function up to 0.625, then from e^2x; an error of a few units in the last place, and odd.
template <int W>
static inline vec<double, W> tanh(vec<double, W> x) {
  typedef vec<double, W> V;
  V size = x < 0.0 ? -x : x;
  V s = x * x;
  V p = (broadcast<double, W>(-9.64399179425052238628e-1) * s - 9.92877231001918586564e1) * s -
        1.61468768441708447952e3;
  V q = ((s + 1.12811678491632931402e2) * s + 2.23548839060100448583e3) * s + 4.84406305325125486048e3;
  V near_zero = x + x * s * p / q;
  const double twice_log2_e = 2.88539008177792681472;  // beyond 22, tanh is 1 in float64
  V far = 1.0 - 2.0 / (exp2_in_range<W>(clamp_max(size, broadcast<double, W>(22.0)) * twice_log2_e) + 1.0);
  far = x < 0.0 ? -far : far;
  return size < 0.625 ? near_zero : far;
}
