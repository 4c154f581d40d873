# right: nobody may be more than s behind
return all(clocks[worker] - clock <= s for clock in clocks.values())
