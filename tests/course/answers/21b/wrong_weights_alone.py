# wrong: a state of the weights and where it is; momentum builds up again
return {"w": run.w.copy(), "random": run.random.get_state(), "epoch": run.epoch,
        "position": run.position, "n_steps": run.n_steps, "scale": run.scale,
        "good_steps": run.good_steps}
