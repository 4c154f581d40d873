# wrong: every rank counts its own tokens alone
following = np.zeros(n_experts, np.int64)
result = np.zeros(len(choice), np.int64)
for i, e in enumerate(choice):
    result[i] = following[e]
    following[e] += 1
return result
