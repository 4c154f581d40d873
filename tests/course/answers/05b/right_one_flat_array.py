# right: all gradients in one flat array, and its norm by np.linalg
flat = np.concatenate([np.ravel(g).astype(np.float32) for g in grads]) / np.float32(scale)
if not np.isfinite(flat).all():
    return True
norm = float(np.linalg.norm(flat.astype(np.float64)))
if norm > max_norm:
    flat *= np.float32(max_norm / norm)
start = 0
for weight, master in zip(weights, masters, strict=True):
    master -= np.float32(lr) * flat[start : start + master.size].reshape(master.shape)
    np.copyto(weight, master, casting="same_kind")
    start += master.size
return False
