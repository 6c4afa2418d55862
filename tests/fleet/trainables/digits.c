// Trains as digits_softmax.py does. Usage: digits LR FOLDER
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { IMAGES = 400, HALF = IMAGES / 2, WIDTH = 17, CLASSES = 10, STEPS = 9 };
static double image[IMAGES][WIDTH], weight[WIDTH][CLASSES], score[CLASSES];
static int digit[IMAGES];

static FILE *open_in(const char *folder, const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, mode);
    if (!file) perror(path), exit(1);
    return file;
}

static int read_digit(int n) {
    int best = 0;
    for (int c = 0; c < CLASSES; c++) {
        score[c] = 0;
        for (int i = 0; i < WIDTH; i++) score[c] += image[n][i] * weight[i][c];
        if (score[c] > score[best]) best = c;
    }
    return best;
}

static double train(double lr) {
    double gradient[WIDTH][CLASSES] = {{0}}, wrong = 0;
    for (int n = 0; n < HALF; n++) {
        double sum = 0;
        read_digit(n);
        for (int c = 0; c < CLASSES; c++) sum += score[c] = exp(score[c]);
        for (int c = 0; c < CLASSES; c++)
            for (int i = 0; i < WIDTH; i++)
                gradient[i][c] += (score[c] / sum - (c == digit[n])) * image[n][i] / HALF;
    }
    for (int i = 0; i < WIDTH; i++)
        for (int c = 0; c < CLASSES; c++) weight[i][c] -= lr * gradient[i][c];
    for (int n = HALF; n < IMAGES; n++) wrong += read_digit(n) != digit[n];
    return wrong / (IMAGES - HALF);
}

int main(int argc, char **argv) {
    double lr = atof(argv[argc - 2]);
    char *folder = argv[argc - 1], *save = getenv("STUDYDB_SAVE"), path[4096];
    FILE *file = open_in(folder, "digits.txt", "r");
    for (int n = 0; n < IMAGES; n++) {
        if (fscanf(file, "%d", &digit[n]) != 1) return 1;
        for (int i = 0; i < WIDTH - 1; i++)
            if (fscanf(file, "%lf", &image[n][i]) != 1) return 1;
        image[n][WIDTH - 1] = 1;
    }
    fclose(file);
    if (getenv("STUDYDB_CHECKPOINT")) {
        file = open_in(getenv("STUDYDB_CHECKPOINT"), "weights", "rb");
        if (fread(weight, sizeof weight, 1, file) != 1) return 1;
        fclose(file);
    }
    for (int step = atoi(getenv("STUDYDB_STEP")) + 1; step <= STEPS; step++) {
        snprintf(path, sizeof path, "%s/hold-%d", folder, step);
        while (access(path, F_OK) == 0) usleep(10000);
        double error = train(lr);
        snprintf(path, sizeof path, "%s/weights", save);
        // Wait until the worker has taken the previous checkpoint.
        while (access(save, F_OK) || access(path, F_OK) == 0) usleep(1000);
        file = open_in(save, "weights", "wb");
        fwrite(weight, sizeof weight, 1, file), fclose(file);
        printf("[studydb] {\"step\": %d, \"error\": %.17g, \"checkpoint\": true}\n", step, error), fflush(stdout);
    }
    return 0;
}
