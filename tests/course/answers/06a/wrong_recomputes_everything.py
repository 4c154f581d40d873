# wrong: every layer alone and run twice: fits often, but far from "as few as possible"
n = len(sizes) - 1
segments = [(i, i + 1, True) for i in range(n)]
return segments if peak_bytes(sizes, segments) <= budget else None
