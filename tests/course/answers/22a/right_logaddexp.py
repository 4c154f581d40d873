# right: log-sum-exp first, by NumPy, and the probabilities from it
scores = np.einsum("hie,hje->hij", q, k) * q.shape[-1] ** -0.5
scores[:, at_k[None, :] > at_q[:, None]] = -np.inf
lse = np.logaddexp.reduce(scores, axis=-1)
safe = np.where(np.isinf(lse), 0.0, lse)
return np.einsum("hij,hje->hie", np.exp(scores - safe[..., None]), v), lse
