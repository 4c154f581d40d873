# wrong: the list is reversed and the parents in it are shifted by one more than they should
return [None if parent is None else p - parent for parent in reversed(first)]
