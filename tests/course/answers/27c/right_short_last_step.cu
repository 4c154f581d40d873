// right: the last step adds only what there is
const int n = n_taps - k0 < TILE ? n_taps - k0 : TILE;
if (u < n && o < n_out) ws[v][u] = w[o * n_taps + k0 + u];
if (v < n && p < n_pixels) xs[v][u] = x[of_tap[k0 + v] + of_pixel[p]];
__syncthreads();
if (o < n_out && p < n_pixels)
  for (int l = 0; l < n; ++l) sum += ws[v][l] * xs[l][u];
__syncthreads();
