# Trains as digits_softmax.py does, with a process of awk for each step.
# Usage: sh digits.sh LR FOLDER
lr=$1 folder=$2 step=$STUDYDB_STEP weights=$STUDYDB_CHECKPOINT/weights
[ -n "$STUDYDB_CHECKPOINT" ] || weights=/dev/null
while [ "$step" -lt 9 ]; do
    step=$((step + 1))
    while [ -e "$folder/hold-$step" ]; do sleep 0.02; done
    error=$(awk -v lr="$lr" -v saved="$STUDYDB_SAVE/weights" -f digits.awk "$weights" "$folder/digits.txt")
    cp "$STUDYDB_SAVE/weights" "$folder/weights-$STUDYDB_TRIAL-$STUDYDB_ATTEMPT"
    weights=$folder/weights-$STUDYDB_TRIAL-$STUDYDB_ATTEMPT
    studydb report "error=$error" --step "$step" --save || exit 0
done
