# Descends one step from WEIGHTS, writes the new weights to FILE, and prints the share of unseen
# digits that are misread.
# Usage: awk -v lr=LR -v saved=FILE -f digits.awk WEIGHTS DIGITS
FILENAME != ARGV[2] { w[FNR - 1] = $1; next }
{
    digit[n] = $1
    for (i = 2; i <= NF; i++) x[n, i - 2] = $i
    x[n++, NF - 1] = 1
    width = NF
}
function scores(m,    c, i) {
    for (c = 0; c < 10; c++) {
        z[c] = 0
        for (i = 0; i < width; i++) z[c] += x[m, i] * w[10 * i + c]
    }
}
END {
    half = int(n / 2)
    for (m = 0; m < half; m++) {
        scores(m)
        sum = 0
        for (c = 0; c < 10; c++) sum += e[c] = exp(z[c])
        for (c = 0; c < 10; c++) {
            slope = (e[c] / sum - (c == digit[m])) / half
            for (i = 0; i < width; i++) g[10 * i + c] += slope * x[m, i]
        }
    }
    for (k = 0; k < 10 * width; k++) printf "%.17g\n", w[k] -= lr * g[k] > saved
    for (m = half; m < n; m++) {
        scores(m)
        best = 0
        for (c = 1; c < 10; c++) if (z[c] > z[best]) best = c
        wrong += best != digit[m]
    }
    printf "%.17g", wrong / (n - half)
}
