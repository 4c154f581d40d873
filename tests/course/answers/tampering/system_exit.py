# tampering: raises what no `except Exception` catches
raise SystemExit
