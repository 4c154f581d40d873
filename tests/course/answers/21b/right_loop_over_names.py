# right: numbers by name, arrays copied
state = {name: getattr(run, name) for name in
         ("epoch", "position", "n_steps", "scale", "good_steps")}
for name in ("w", "v"):
    state[name] = np.array(getattr(run, name))
state["random"] = run.random.get_state()
return state
