"""Runs code that a model wrote, so that it can neither do harm nor pass its tests by a trick.

examination.py two sandboxed processes, one with the answer's code and one with its tests, and the
verdict of the second
bubblewrap.py  a bubblewrap container for each process of ours, and guests in it, with every limit
seccomp.py     the system calls that a guest may make
warden.py      inside: forks the guests, each for one job, and gives up all it has for them
guest.py       what runs inside: the candidate (the answer's code) or the examiner (its tests), who
               counts the verdict

Inside, at the candidate's end: an answer may do anything to it
assembly.py    the program that an answer means; the cases that tests have
candidate.py   runs the program and does what the examiner asks

Inside, at the examiner's end: it asks, and believes nothing but plain data
reading.py     what tests say: the names they need, how they treat them
flow.py        where values go in tests: which come of the answer, which share data with an argument
client.py      requests and their answers; whatever else arrives ends the examination
proxies.py     the answer's objects, as narrow proxies
errors.py      the answer's exceptions, by name
arguments.py   arguments that a call changed

Between them: wire.py (frames on a pair of pipes) and plain.py (the closed set of types that cross)
"""
