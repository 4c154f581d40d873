// A broadcast of the block's maximum through a volatile number: volatile waits for nobody.
// kind: missing barrier
/* launch
x = ramp(96)
cu("normalise")((1,), (96,), (x,))
*/
extern "C" __global__ void normalise(float* x) {
  __shared__ volatile float top;
  int t = threadIdx.x;
  if (t == 0) {
    float best = x[0];
    for (int j = 1; j < blockDim.x; ++j) best = fmaxf(best, x[j]);
    top = best;  // BUG: the others must wait until here
  }
  x[t] = t / top;  // BUG
}
