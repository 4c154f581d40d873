// An assert that does not hold for one element.
// kind: assert
/* launch
labels = np.zeros(64, np.int32)
labels[40] = 10
out = np.zeros(10, np.int32)
cu("count_labels")((1,), (64,), (out, labels, 64, 10))
*/
#include <assert.h>

extern "C" __global__ void count_labels(int* out, const int* labels, int n, int classes) {
  int i = threadIdx.x;
  if (i < n) {
    assert(labels[i] < classes);  // BUG: labels[40] is 10 of 10 classes
    atomicAdd(&out[labels[i] % classes], 1);
  }
}
