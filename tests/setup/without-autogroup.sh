#!/bin/bash
# Has the kernel share cores among threads and not among sessions (autogroup) until standard input ends. Prints a line once that is so. The
# last of those who ask for it at a time puts the setting back.
#
# With autogroup, Linux 6.18 lets threads of a machine with more work than cores wait for seconds, the kernel's own among them: frames are
# lost, and what has a second to answer is late.
set -u
trap '' INT TERM HUP

setting=/proc/sys/kernel/sched_autogroup_enabled
before=/run/pinion-autogroup

if ! [ -w "$setting" ] || ! exec 8>>"$before.lock" 9>>"$before"; then
    echo "autogroup stays"
    exec cat >/dev/null
fi
flock 8
# What the first one finds is what the last one puts back.
[ -s "$before" ] || cat "$setting" >&9
echo 0 >"$setting"
flock -s 9
flock -u 8
echo "autogroup is off"
cat >/dev/null
flock 8
flock -n 9 && cat "$before" >"$setting" && : >"$before"
