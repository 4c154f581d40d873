# right: a deep copy of the attributes
import copy
names = "w v epoch position n_steps scale good_steps".split()
state = copy.deepcopy({name: vars(run)[name] for name in names})
return state | {"random": tuple(run.random.get_state())}
