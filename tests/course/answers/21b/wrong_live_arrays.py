# wrong: the arrays themselves
return {"w": run.w, "v": run.v, "random": run.random.get_state(), "epoch": run.epoch,
        "position": run.position, "n_steps": run.n_steps, "scale": run.scale,
        "good_steps": run.good_steps}
