#!/bin/bash
#SBATCH --job-name=studydb
#SBATCH --array=1-8
#SBATCH --cpus-per-task=2
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=studydb-%A_%a.log
#
# Workers of a study as an array job: sbatch workers/slurm-array.sh STUDY [options of the worker]
#
# A minute before the time limit, and on preemption, Slurm sends TERM to this shell alone (`B:`). The
# shell sends TERM to the worker, which lets its trials save, flushes their results and releases the
# trials within 30 s. Then the task goes back to the queue. The same happens if Slurm sends USR1 or
# USR2 instead, for example with `sbatch --signal=B:USR1@60`.
set -u

if [ $# -eq 0 ]; then
    echo "Name the study: sbatch $0 STUDY [options of studydb worker]" >&2
    exit 2
fi
study=$1
shift

# The trap is set first, so that no signal ends this shell and leaves the worker running.
trap 'interrupted=yes; [ -z "${!:-}" ] || kill -TERM "$!" 2>/dev/null' TERM USR1 USR2
studydb worker --study "$study" "$@" &
worker=$!

# A trapped signal interrupts `wait`; only an uninterrupted `wait` gives the worker's exit code.
interrupted=yes
while [ "$interrupted" = yes ]; do
    interrupted=no
    wait "$worker"
    code=$?
done

# 128 + the number of SIGUSR1, SIGUSR2 or SIGTERM: the trials were released before the study was done.
case $code in
138 | 140 | 143)
    if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then
        scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    fi
    ;;
esac
exit "$code"
