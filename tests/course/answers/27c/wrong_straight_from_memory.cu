// wrong: each thread reads its row and column from memory
for (int l = 0; l < TILE; ++l)
  if (o < n_out && p < n_pixels && k0 + l < n_taps)
    sum += w[o * n_taps + k0 + l] * x[of_tap[k0 + l] + of_pixel[p]];
