# wrong: every attribute, the data set too
state = {name: value.copy() if isinstance(value, np.ndarray) else value
         for name, value in vars(run).items()}
state["random"] = run.random.get_state()
return state
