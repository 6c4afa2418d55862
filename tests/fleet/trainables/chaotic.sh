# The command of crash tests: a shell whose child trains, with a process in the background.
# Usage: sh chaotic.sh PYTHON
sleep 600 &
"$1" chaotic_command.py
exit $?
