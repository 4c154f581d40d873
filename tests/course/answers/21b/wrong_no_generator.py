# wrong: the noise begins anew
return {"w": run.w.copy(), "v": run.v.copy(), "epoch": run.epoch, "position": run.position,
        "n_steps": run.n_steps, "scale": run.scale, "good_steps": run.good_steps}
