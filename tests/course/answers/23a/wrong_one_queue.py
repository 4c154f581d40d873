# wrong: one queue of all tokens, whatever their expert
lengths = np.zeros(t.size, np.int64)
lengths[t.rank] = len(choice)
ring.all_reduce(t, lengths)
return lengths[:t.rank].sum() + np.arange(len(choice))
