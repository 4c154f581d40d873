// wrong: threads outside of the result do not come to the barriers
if (o < n_out && p < n_pixels) {
  ws[v][u] = k0 + u < n_taps ? w[o * n_taps + k0 + u] : 0;
  xs[v][u] = k0 + v < n_taps ? x[of_tap[k0 + v] + of_pixel[p]] : 0;
  __syncthreads();
  for (int l = 0; l < TILE; ++l) sum += ws[v][l] * xs[l][u];
  __syncthreads();
}
