// e^x for x <= 0 on a CPU. A result below 1.7e-38 counts as 0. The function takes half of expf's
// time, because it does not handle subnormal numbers and infinity. The method: x = n log 2 + r, so
// e^x = 2^(n - 1) * 2 e^r. Adding 1.5 * 2^23 to x / log 2 rounds it to an integer. The lowest bits
// of the sum hold n. If 126 is added, too, these bits are the exponent field of 2^(n - 1). For n =
// -126 the field is 0, so the result is 0.
// Test: tests/cuda/test_rows.py
#pragma once

__device__ __forceinline__ float exp_below_zero(float x) {
  const float magic = 12582912.0f + 126.0f;
  x = x < -87.0f ? -87.0f : x;  // NaN stays NaN
  float t = x * 1.442695041f + magic;
  float n = t - magic, r = x - n * 0.693145751953125f;
  r = r - n * 1.42860682030941723e-6f;
  float p = 0.0027687184f;  // 2 e^r for |r| < 0.347
  p = p * r + 0.016748415f;
  p = p * r + 0.08333601f;
  p = p * r + 0.3333286f;
  p = p * r + 0.9999999f;
  p = p * r + 2.0f;
  p = p * r + 2.0f;
  return p * __uint_as_float(__float_as_uint(t) << 23);
}
