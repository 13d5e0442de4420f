#!/bin/bash
# Makes the kernel share cores among threads and not among sessions (autogroup), for processes that are started from now on, until standard
# input ends. Prints one line: whether it does. The last of these scripts to end puts the setting back; after one was killed, the next does.
#
# With autogroup, Linux 6.18.44 let threads of a virtual machine with more work than cores wait for seconds, its own kernel threads among
# them: frames were lost, and what has a second to answer was late.
set -u
trap '' INT TERM HUP QUIT PIPE

setting=/proc/sys/kernel/sched_autogroup_enabled
before=/run/pinion-autogroup

# A second lock is held while the setting changes, so that scripts that begin and end side by side take turns.
if ! [ -w "$setting" ] || ! exec 8>>"$before.lock" 9>>"$before"; then
    echo "autogroup stays as it is: $setting cannot be written"
    exec cat >/dev/null
fi
flock 8
# What the first one finds is what the last one puts back.
if [ "$(cat "$setting")" != 0 ] || ! [ -s "$before" ]; then
    cat "$setting" >"$before"
fi
echo 0 >"$setting" && said="autogroup is off"
flock -s 9
flock -u 8
echo "${said:-autogroup stays as it is: $setting cannot be written}"
cat >/dev/null
flock 8
flock -n 9 && cat "$before" >"$setting" && : >"$before"
