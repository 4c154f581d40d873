// A tree is walked with a stack of four in a local array: a tree that is a chain is deeper.
// kind: overrun through a pointer
/* launch
right = np.array([1, 2, 3, 4, 5, 6, 7, -1], np.int32)
cu("walk")((1,), (2,), (np.zeros(2, np.int32), right))
*/
struct Stack {
  int* items;
  int n;
  __device__ void push(int v) { items[n++] = v; }  // BUG: nobody counts
  __device__ int pop() { return items[--n]; }      // BUG
};

extern "C" __global__ void walk(int* out, const int* right) {
  int memory[4];
  Stack stack{memory, 0};
  for (int node = 0; node >= 0; node = right[node]) stack.push(node);  // BUG
  int sum = 0;
  while (stack.n > 0) sum += stack.pop();
  out[threadIdx.x] = sum;
}
