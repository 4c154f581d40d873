# wrong: the epoch is begun again
return {"w": run.w.copy(), "v": run.v.copy(), "random": run.random.get_state(),
        "epoch": run.epoch, "n_steps": run.n_steps, "scale": run.scale,
        "good_steps": run.good_steps}
