# right: all attributes but those that step or Toy() makes
kept = {}
for name, value in vars(run).items():
    if name in ("data", "gradient"):
        continue
    if name == "random":
        value = value.get_state()
    kept[name] = value.copy() if hasattr(value, "copy") else value
return kept
