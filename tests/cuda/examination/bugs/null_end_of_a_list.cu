// A linked list is followed past its last node.
// kind: null pointer
/* launch
out = np.zeros(16, np.float32)
cu("follow")((1,), (16,), (out, 6))
*/
struct Node {
  float value;
  Node* next;
};

extern "C" __global__ void follow(float* out, int steps) {
  Node c = {3.0f, nullptr}, b = {2.0f, &c}, a = {1.0f, &b};
  Node* node = &a;
  float sum = 0;
  for (int k = 0; k < steps; ++k) {
    sum += node->value;  // BUG: the fourth step stands at the list's null
    node = node->next;
  }
  out[threadIdx.x] = sum;
}
