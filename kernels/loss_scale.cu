// Updates the loss scale on the GPU, with one thread. So the host does not have to wait to know
// whether a gradient overflowed.
//
//   loss_scale_factor   factor = 1 / scale, times min(1, max_norm / (|g| / scale + 1e-6)) to clip
//   loss_scale_update   lowers the scale after `hysteresis` overflows, raises it after `interval`
//                       good steps. reference_update in the wrapper does the same in Python
//
//   scale        1 float
//   square_sum   1 double, the sum of squares |g|^2 of the scaled gradients. If it is null, nothing
//                is clipped
//   counts       3 ints: the number of good steps since the scale was raised or a step overflowed,
//                the number of overflows until the scale is lowered, the number of skipped steps
//
// Expected share of a copy's bandwidth on a GPU: none. Each kernel moves at most 36 bytes, so its
// time is the time of one launch.
// Wrapper: minidl/precision/loss_scale.py   Test: tests/precision/test_loss_scale.py

extern "C" __global__ void loss_scale_factor(float* factor, const float* scale,
                                             const double* square_sum, double max_norm) {
  if (blockIdx.x || threadIdx.x) return;
  double inverse = scale ? 1.0 / *scale : 1.0;
  if (square_sum) {
    double shrink = max_norm / (sqrt(*square_sum) * inverse + 1e-6);
    inverse *= shrink < 1.0 ? shrink : 1.0;
  }
  *factor = (float)inverse;
}

extern "C" __global__ void loss_scale_update(float* scale, int* counts, const int* bad,
                                             double growth, double backoff, int interval,
                                             int hysteresis, double least, double most) {
  if (blockIdx.x || threadIdx.x) return;
  int good_steps = counts[0], patience = counts[1];
  double s = *scale;
  if (*bad) {
    good_steps = 0;
    patience -= 1;
    if (patience <= 0) s = s * backoff > least ? s * backoff : least;
    counts[2] += 1;
  } else {
    good_steps += 1;
    if (good_steps == interval) {
      good_steps = 0;
      patience = hysteresis;
      if (s * growth <= most) s *= growth;
    }
  }
  *scale = (float)s;
  counts[0] = good_steps;
  counts[1] = patience;
}
