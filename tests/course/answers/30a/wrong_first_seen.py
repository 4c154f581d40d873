# wrong: the first of the most frequent pairs
counts = {}
for word, n in words.items():
    for i in range(len(word) - 1):
        counts[word[i:i + 2]] = counts.get(word[i:i + 2], 0) + n
if not counts or max(counts.values()) < 2:
    return None, words
pair = max(counts, key=counts.get)
new = {}
for word, n in words.items():
    ids, i = [], 0
    while i < len(word):
        if word[i:i + 2] == pair:
            ids.append(token)
            i += 2
        else:
            ids.append(word[i])
            i += 1
    new[tuple(ids)] = n
return pair, new
