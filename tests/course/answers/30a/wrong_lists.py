# wrong: the words become text
counts = {}
for word, n in words.items():
    for i in range(len(word) - 1):
        counts[word[i:i + 2]] = counts.get(word[i:i + 2], 0) + n
if not counts or max(counts.values()) < 2:
    return None, words
most = max(counts.values())
pair = min(p for p in counts if counts[p] == most)
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
    new[str(ids)] = n
return pair, new
