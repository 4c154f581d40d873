// A recursion of small depth, local arrays behind pointers that change places, negative offsets.
// kind: sound
/* launch
out = np.zeros(24, np.int32)
cu("fibonacci")((1,), (24,), (out,))
want = [0, 1]
while len(want) < 24:
    want.append(want[-1] + want[-2])
same(out, want)
*/
__device__ void step(int* now, int* next, int n, int* result) {
  if (n == 0) {
    *result = now[-1];
    return;
  }
  next[-1] = now[0];
  next[0] = now[0] + now[-1];
  step(next, now, n - 1, result);
}

extern "C" __global__ void fibonacci(int* out) {
  int a[2] = {0, 1}, b[2];
  int *last_of_a = a + 1, *last_of_b = b + 1;
  step(last_of_a, last_of_b, threadIdx.x, &out[threadIdx.x]);
}
