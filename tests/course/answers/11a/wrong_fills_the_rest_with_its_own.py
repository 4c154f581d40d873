# wrong: no communication at all: the own share again and again
flat[...] = np.resize(self.own, flat.shape)
