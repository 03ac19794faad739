/*
 * A libnvidia-ml.so.1 without a driver: what NVIDIA's header promises, and no more.
 *
 * It stands for no particular driver. Where the header leaves something open, it is
 * strict: a handle of before nvmlShutdown is invalid, a freed sample is poisoned and
 * never given out again, samples of two GPUs do not mix.
 *
 * Every function first asks the faults (below) and then the simulated GPU. Averages,
 * energy and throttle time are integrals of one made-up workload over the same time, so
 * that what is read of them agrees.
 *
 * Controlled by commands, one a line or between semicolons: by fake_do() from within
 * the process, or by the environment variable FAKE_NVML, whose value is such commands
 * or the path of a file of them. "@12.5 lose 1" does so 12.5 s after the start.
 *
 *   gpus N                          how many there are (2); all of them anew
 *   model GPU NAME                  h100 h200 b200 a100 l40s t4 rtx4090 gb10
 *   driver TEXT                     its version
 *   text GPU name|uuid TEXT
 *   value GPU NAME NUMBER|-         holds it there; - lets it go again
 *   return FUNCTION GPU CODE [FIRST [COUNT]]   from its FIRST call from now on (1),
 *                                   COUNT times (for good); 0 mends; * is any, but
 *                                   for what frees memory
 *   field GPU ID CODE               of one field value
 *   field_type GPU ID TYPE          the type it comes in
 *   metric GPU ID CODE|nan          of one GPM metric; nan: a value that is none
 *   lose GPU [CODE]                 every call about it fails (15)
 *   back GPU                        it answers again
 *   anew GPU                        likewise, but only to handles asked for from now on
 *   xid GPU NUMBER                  an event
 *   mig GPU INSTANCE PROFILE MIB    a slice, for instance: mig 0 3 1g.10gb 9856
 *   unmig GPU INSTANCE              it is gone; 255: all are, MIG is off
 *   hole GPU                        a place without a slice, among the others
 *   process GPU PID BYTES|-         somebody uses it; - when unknown
 *   no_processes GPU
 *   virtual GPU MODE                1 passthrough, 2 vGPU
 *   reset GPU                       its counters, as when the driver is loaded anew
 *   hold                            time stands still, but for:
 *   jump SECONDS
 *   cost FUNCTION MICROSECONDS      how long each call takes
 *   meter 0|1                       count the time spent in here, as "inside ns"
 *   busy 0|1                        a workload (1) or none
 *   gpm_breaks_memory 0|1           after it was used on MIG, as driver 535 had it
 *   fresh_faults                    no call, field or metric fails any more
 *   fresh                           all as at the start, nobody has called nvmlInit
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_SLICES 7
#define MAX_HANDLES 512
#define MAX_FAULTS 256
#define MAX_LATER 256
#define MAX_PROCESSES 16
#define MAX_EVENTS 64
#define MAX_QUARANTINE 4096

typedef long long ns_t;
typedef unsigned long long u64;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3,
    NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, IN_USE = 19, OUT_OF_MEMORY = 20,
    VERSION_MISMATCH = 25, UNKNOWN = 999,
    NO_NUMBER = 100000, /* ours: of a metric that succeeds without one */
};

/* ---- What there is ----------------------------------------------------------- */

struct model {
    const char *key, *name;
    unsigned architecture, bus_bits, memory_mhz, sm_mhz, limit_w, sms;
    u64 memory_mib, reserved_mib;
    int gpm, hbm;
};

static const struct model MODELS[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 9, 5120, 2619, 1980, 700, 132, 81559, 551, 1, 1},
    {"h200", "NVIDIA H200", 9, 6144, 3201, 1980, 700, 132, 143771, 587, 1, 1},
    {"b200", "NVIDIA B200", 10, 8192, 3996, 1965, 1000, 148, 183359, 717, 1, 1},
    {"a100", "NVIDIA A100-SXM4-80GB", 7, 5120, 1593, 1410, 400, 108, 81920, 669, 0, 1},
    {"l40s", "NVIDIA L40S", 8, 384, 9001, 2520, 350, 142, 46068, 482, 0, 0},
    {"t4", "Tesla T4", 6, 256, 5001, 1590, 70, 40, 15360, 460, 0, 0},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 384, 10501, 3105, 450, 128, 24564, 504, 0, 0},
    {"gb10", "NVIDIA GB10", 10, 0, 0, 3003, 140, 48, 0, 0, 0, 0},
};

/* Values that can be held with "value", and what follows from the workload otherwise. */
#define VALUES \
    V(dram) V(sm) V(occupancy) V(tensor) V(graphics) V(pcie_tx) V(pcie_rx) \
    V(nvlink_tx) V(nvlink_rx) V(power) V(limit) V(sm_clock) V(memory_clock) \
    V(temperature) V(memory_temperature) V(used) V(gpu_busy) V(memory_busy) \
    V(reasons) V(ecc_corrected) V(ecc_uncorrected) V(remapped) V(bus_bits) \
    V(max_memory_clock) V(total) V(throttled)
#define V(name) V_##name,
enum { VALUES N_VALUES };
#undef V
#define V(name) #name,
static const char *const VALUE_NAMES[] = {VALUES};
#undef V

/* What is integrated over time. */
enum { A_DRAM, A_SM, A_OCCUPANCY, A_TENSOR, A_GRAPHICS, A_PCIE_TX, A_PCIE_RX,
       A_NVLINK_TX, A_NVLINK_RX, N_SUMS };

struct slice { int taken, hole; unsigned instance; char profile[24], uuid[64]; u64 mib; };

struct override { unsigned id; int code, type, used; };

struct gpu {
    const struct model *model;
    int index, lost, generation, mig, virtual_mode, memory_broken;
    char name[96], uuid[80], bus_id[32];
    double held[N_VALUES]; /* NaN where it follows the workload */
    double now[N_VALUES];
    double sums[N_SUMS];   /* share x seconds, or MiB */
    double energy_mj, pcie_tx_bytes, pcie_rx_bytes, nvlink_tx_kib, nvlink_rx_kib;
    double capped_ns, thermal_ns, celsius;
    ns_t at;
    struct slice slices[MAX_SLICES];
    struct { unsigned pid; u64 bytes; } processes[MAX_PROCESSES];
    int n_processes;
    struct override fields[64], metrics[64];
};

struct handle { struct gpu *gpu; struct slice *slice; unsigned instance; int generation, session; };

struct sample {
    unsigned magic;
    int filled;
    struct gpu *gpu;
    int instance;
    ns_t at;
    double sums[N_SUMS];
};
enum { ALIVE = 0x600D5A3E, DEAD = 0xDEADDEAD };

struct event_set { unsigned magic; u64 masks[MAX_GPUS]; };

struct fault { char function[64]; int gpu, code; long first, count, seen; int used; };
struct call { char name[64]; long count; unsigned cost_us; };
struct later { double at_s; char command[160]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t happened = PTHREAD_COND_INITIALIZER;
static struct gpu gpus[MAX_GPUS];
static int n_gpus, references, session, ready, busy = 1, breaks_memory;
static const char USUAL_DRIVER[] = "580.95.05 (simulated)";
static char driver[80];
static struct handle handles[MAX_HANDLES];
static struct fault faults[MAX_FAULTS];
static struct call calls[256];
static struct later later[MAX_LATER];
static struct { struct event_set *set; int gpu; u64 type, data; } events[MAX_EVENTS];
static int n_calls, n_faults, n_later, n_handles, n_events, due_later;
static struct sample *made[1 << 16], *quarantine[MAX_QUARANTINE];
static int n_made;
static unsigned long quarantined;
static long samples_alive, samples_made, double_frees, misuses, left_at_shutdown,
    waiting, shutdown_races, sets_alive, inside_ns;
static int metered;
static ns_t entered;
static ns_t started, held_at, jumped;
static int held;
static char last_misuse[160];

static void misuse(const char *what) {
    misuses++;
    snprintf(last_misuse, sizeof last_misuse, "%s", what);
}

static ns_t monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static ns_t now_ns(void) { return (held ? held_at : monotonic() - started) + jumped; }

/* ---- The workload ------------------------------------------------------------ */

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

/* An engine that decodes, prefills in bursts, and now and then has nothing to do. */
static void work(struct gpu *g, double t) {
    const struct model *m = g->model;
    double *v = g->now;
    double wave = 0.62 + 0.24 * sin(t / 2.9) + 0.09 * sin(t / 0.61 + g->index);
    double lull = fmod(t, 47.0) > 41.0 ? 0.0 : 1.0;
    double prefill = fmod(t + 0.04 * g->index, 5.3) < 0.9 ? 1.0 : 0.0;
    double load = busy ? lull * clamp(wave, 0.05, 1.0) : 0.0;
    prefill *= load > 0 ? 0.6 + 0.4 * load : 0;
    v[V_dram] = 100 * clamp(0.90 * load * (1 - 0.45 * prefill), 0, 0.93);
    v[V_sm] = 100 * clamp(load > 0 ? 0.15 + 0.62 * load + 0.32 * prefill : 0, 0, 0.99);
    v[V_occupancy] = 0.44 * v[V_sm];
    v[V_tensor] = 100 * clamp(0.11 * load + 0.58 * prefill, 0, 1);
    v[V_graphics] = load > 0 ? 100 * clamp(0.75 + 0.3 * load, 0, 1) : 0;
    v[V_pcie_tx] = 60 * load + 240 * prefill;
    v[V_pcie_rx] = 90 * load + 400 * prefill;
    v[V_nvlink_tx] = v[V_nvlink_rx] = n_gpus > 1 && m->hbm ? 9000 * load + 60000 * prefill : 0;
    v[V_limit] = m->limit_w;
    double limit = isnan(g->held[V_limit]) ? v[V_limit] : g->held[V_limit];
    double wanted = m->limit_w * (0.16 + 0.0040 * v[V_dram] + 0.0022 * v[V_sm] + 0.0076 * v[V_tensor]);
    int capped = wanted > limit;
    v[V_throttled] = capped;
    v[V_power] = capped ? limit : wanted;
    v[V_reasons] = load == 0 ? 0x1 : capped ? 0x4 : 0;
    v[V_sm_clock] = load == 0 ? 345 : m->sm_mhz * (capped ? clamp(1.5 - wanted / limit / 2, 0.6, 0.98) : 1.0);
    v[V_memory_clock] = v[V_max_memory_clock] = m->memory_mhz;
    v[V_bus_bits] = m->bus_bits;
    v[V_temperature] = g->celsius;
    v[V_memory_temperature] = g->celsius + 7;
    v[V_total] = m->memory_mib;
    v[V_used] = (double)m->memory_mib * 1048576 * (busy ? 0.88 + 0.01 * wave : 0.001);
    v[V_gpu_busy] = v[V_graphics];
    v[V_memory_busy] = clamp(v[V_dram] * 1.2, 0, 100);
    v[V_ecc_corrected] = v[V_ecc_uncorrected] = v[V_remapped] = 0;
    for (int i = 0; i < N_VALUES; i++)
        if (!isnan(g->held[i])) v[i] = g->held[i];
}

/* Brings a GPU up to now, in pieces small enough for the workload. */
static void advance(struct gpu *g) {
    ns_t end = now_ns();
    if (end < g->at) g->at = end;
    ns_t piece = (end - g->at) / 2000;
    if (piece < 20000000) piece = 20000000;
    while (g->at < end) {
        ns_t dt = end - g->at < piece ? end - g->at : piece;
        double s = dt / 1e9;
        double *v = g->now;
        work(g, (g->at + dt / 2) / 1e9);
        g->sums[A_DRAM] += v[V_dram] * s;
        g->sums[A_SM] += v[V_sm] * s;
        g->sums[A_OCCUPANCY] += v[V_occupancy] * s;
        g->sums[A_TENSOR] += v[V_tensor] * s;
        g->sums[A_GRAPHICS] += v[V_graphics] * s;
        g->sums[A_PCIE_TX] += v[V_pcie_tx] * s;
        g->sums[A_PCIE_RX] += v[V_pcie_rx] * s;
        g->sums[A_NVLINK_TX] += v[V_nvlink_tx] * s;
        g->sums[A_NVLINK_RX] += v[V_nvlink_rx] * s;
        g->energy_mj += v[V_power] * s * 1000;
        g->pcie_tx_bytes += v[V_pcie_tx] * s * 1048576;
        g->pcie_rx_bytes += v[V_pcie_rx] * s * 1048576;
        g->nvlink_tx_kib += v[V_nvlink_tx] * s * 1024;
        g->nvlink_rx_kib += v[V_nvlink_rx] * s * 1024;
        if (v[V_throttled] > 0) g->capped_ns += dt;
        if ((u64)v[V_reasons] & 0x20) g->thermal_ns += dt;
        g->celsius += (30 + v[V_power] * 28 / g->model->limit_w - g->celsius) * clamp(s / 12, 0, 1);
        g->at += dt;
    }
    work(g, end / 1e9);
}

static void make_gpu(struct gpu *g, int index, const struct model *m) {
    int generation = g->generation + 1;
    memset(g, 0, sizeof *g);
    g->generation = generation;
    g->model = m;
    g->index = index;
    g->celsius = 34;
    g->at = now_ns();
    g->energy_mj = 5.0e9 + 1e6 * index;
    snprintf(g->name, sizeof g->name, "%s", m->name);
    snprintf(g->uuid, sizeof g->uuid, "GPU-5e1f0000-0000-4000-8000-%012d", index);
    snprintf(g->bus_id, sizeof g->bus_id, "00000000:%02X:00.0", 0x18 + index * 8);
    for (int i = 0; i < N_VALUES; i++) g->held[i] = NAN;
}

/* ---- Commands ---------------------------------------------------------------- */

static struct gpu *gpu_of(const char *text) {
    int index = text ? atoi(text) : -1;
    return index >= 0 && index < n_gpus ? &gpus[index] : NULL;
}

static struct call *call_of(const char *name) {
    for (int i = 0; i < n_calls; i++)
        if (!strcmp(calls[i].name, name)) return &calls[i];
    if (n_calls == 256) abort();
    snprintf(calls[n_calls].name, sizeof calls[0].name, "%s", name);
    return &calls[n_calls++];
}

static void override(struct override *all, unsigned id, int code, int type) {
    for (int i = 0; i < 64; i++)
        if (!all[i].used || all[i].id == id) {
            struct override *o = &all[i];
            if (!o->used) *o = (struct override){.id = id, .type = -1, .used = 1};
            if (code >= 0) o->code = code;
            if (type >= 0) o->type = type;
            return;
        }
}

static void happen(int gpu, u64 type, u64 data);
static int do_one(char *line);

static void slice_command(struct gpu *g, int hole, char **word) {
    g->mig = 1;
    for (int i = 0; i < MAX_SLICES; i++) {
        struct slice *s = &g->slices[i];
        if (s->taken || s->hole) continue;
        if (hole) { s->hole = 1; return; }
        s->taken = 1;
        s->instance = (unsigned)atoi(word[0]);
        s->mib = strtoull(word[2], NULL, 0);
        snprintf(s->profile, sizeof s->profile, "%s", word[1]);
        snprintf(s->uuid, sizeof s->uuid, "MIG-5e1f0000-0000-4000-8000-%06d%06u", g->index, s->instance);
        return;
    }
}

static void unmig(struct gpu *g, unsigned instance) {
    for (int i = 0; i < MAX_SLICES; i++) {
        struct slice *s = &g->slices[i];
        if (instance == 255 || (s->taken && s->instance == instance)) s->taken = s->hole = 0;
    }
    if (instance == 255) g->mig = 0;
}

static int fault_command(int n, char **w) {
    struct fault f = {.gpu = -1, .first = 1, .count = -1, .used = 1};
    if (n < 4 || strlen(w[1]) >= sizeof f.function) return -1;
    strcpy(f.function, w[1]);
    if (strcmp(w[2], "*")) f.gpu = atoi(w[2]);
    f.code = atoi(w[3]);
    if (n > 4) f.first = atol(w[4]);
    if (n > 5) f.count = atol(w[5]);
    for (int i = 0; i < n_faults; i++) /* one for each function and GPU */
        if (faults[i].gpu == f.gpu && !strcmp(faults[i].function, f.function)) {
            faults[i] = f;
            return 0;
        }
    if (n_faults == MAX_FAULTS) return -1;
    faults[n_faults++] = f;
    return 0;
}

static int gpu_command(struct gpu *g, int n, char **w) {
    const char *c = w[0];
    if (!strcmp(c, "lose")) g->lost = n > 2 ? atoi(w[2]) : GPU_IS_LOST;
    else if (!strcmp(c, "back")) g->lost = 0;
    else if (!strcmp(c, "anew")) { g->lost = 0; g->generation++; }
    else if (!strcmp(c, "hole")) slice_command(g, 1, NULL);
    else if (!strcmp(c, "no_processes")) g->n_processes = 0;
    else if (!strcmp(c, "reset")) {
        advance(g);
        g->energy_mj = g->capped_ns = g->thermal_ns = 0;
        g->pcie_tx_bytes = g->pcie_rx_bytes = g->nvlink_tx_kib = g->nvlink_rx_kib = 0;
    } else if (n < 3) return -1;
    else if (!strcmp(c, "xid")) happen(g->index, 0x8, strtoull(w[2], NULL, 0));
    else if (!strcmp(c, "unmig")) unmig(g, (unsigned)atoi(w[2]));
    else if (!strcmp(c, "virtual")) g->virtual_mode = atoi(w[2]);
    else if (!strcmp(c, "model")) {
        for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
            if (!strcmp(MODELS[i].key, w[2])) { make_gpu(g, g->index, &MODELS[i]); return 0; }
        return -1;
    } else if (n < 4) return -1;
    else if (!strcmp(c, "field")) override(g->fields, (unsigned)atoi(w[2]), atoi(w[3]), -1);
    else if (!strcmp(c, "field_type")) override(g->fields, (unsigned)atoi(w[2]), -1, atoi(w[3]));
    else if (!strcmp(c, "metric")) override(g->metrics, (unsigned)atoi(w[2]), strcmp(w[3], "nan") ? atoi(w[3]) : NO_NUMBER, -1);
    else if (!strcmp(c, "value")) {
        advance(g);
        for (int i = 0; i < N_VALUES; i++)
            if (!strcmp(VALUE_NAMES[i], w[2])) {
                g->held[i] = strcmp(w[3], "-") ? strtod(w[3], NULL) : NAN;
                return 0;
            }
        if (!strcmp(w[2], "energy")) g->energy_mj = strtod(w[3], NULL);
        else if (!strcmp(w[2], "pcie_tx_count")) g->pcie_tx_bytes = strtod(w[3], NULL);
        else return -1;
    } else if (!strcmp(c, "process")) {
        if (g->n_processes == MAX_PROCESSES) return -1;
        g->processes[g->n_processes].pid = (unsigned)strtoul(w[2], NULL, 0);
        g->processes[g->n_processes++].bytes = strcmp(w[3], "-") ? strtoull(w[3], NULL, 0) : ~0ULL;
    } else if (n < 5) return -1;
    else if (!strcmp(c, "mig")) slice_command(g, 0, w + 2);
    else return -1;
    return 0;
}

static void make_gpus(int count) {
    for (int i = 0; i < count; i++) make_gpu(&gpus[i], i, &MODELS[0]);
    n_gpus = count;
}

static void fresh(void) {
    for (int i = 0; i < n_calls; i++) calls[i].count = calls[i].cost_us = 0;
    n_faults = n_later = due_later = n_events = references = held = breaks_memory = 0;
    while (n_made) free(made[--n_made]);
    while (quarantined) { /* of the last round */
        struct sample **slot = &quarantine[--quarantined % MAX_QUARANTINE];
        free(*slot);
        *slot = NULL;
    }
    samples_alive = samples_made = double_frees = misuses = left_at_shutdown = shutdown_races = 0;
    last_misuse[0] = 0;
    started = monotonic();
    jumped = 0;
    busy = 1;
    session++;
    strcpy(driver, USUAL_DRIVER);
    make_gpus(2);
}

static int do_text(char *line) {
    char *w[8], *rest = NULL, *text = line;
    int n = 0;
    while (isspace((unsigned char)*text)) text++;
    if (!strncmp(text, "driver ", 7)) {
        snprintf(driver, sizeof driver, "%s", text + 7);
        return 0;
    }
    if (!strncmp(text, "text ", 5)) { /* its last word may hold spaces */
        int index, at = 0;
        char what[8];
        if (sscanf(text, "text %d %7s %n", &index, what, &at) != 2 || !at) return -1;
        if (index < 0 || index >= n_gpus) return -1;
        if (!strcmp(what, "name")) snprintf(gpus[index].name, sizeof gpus[0].name, "%s", text + at);
        else if (!strcmp(what, "uuid")) snprintf(gpus[index].uuid, sizeof gpus[0].uuid, "%s", text + at);
        else return -1;
        return 0;
    }
    for (char *p = strtok_r(text, " \t\r", &rest); p && n < 8; p = strtok_r(NULL, " \t\r", &rest)) w[n++] = p;
    if (!n || w[0][0] == '#') return 0;
    if (w[0][0] == '@') return -1;
    const char *c = w[0];
    if (!strcmp(c, "fresh")) fresh();
    else if (!strcmp(c, "fresh_faults")) {
        n_faults = 0;
        for (int i = 0; i < n_gpus; i++) {
            memset(gpus[i].fields, 0, sizeof gpus[i].fields);
            memset(gpus[i].metrics, 0, sizeof gpus[i].metrics);
            gpus[i].memory_broken = 0;
        }
    }
    else if (!strcmp(c, "hold")) {
        if (!held) { held_at = monotonic() - started; held = 1; }
    } else if (!strcmp(c, "return")) return fault_command(n, w);
    else if (n < 2) return -1;
    else if (!strcmp(c, "gpus")) {
        int count = atoi(w[1]);
        if (count < 0 || count > MAX_GPUS) return -1;
        make_gpus(count);
    } else if (!strcmp(c, "busy")) {
        for (int i = 0; i < n_gpus; i++) advance(&gpus[i]);
        busy = atoi(w[1]);
    } else if (!strcmp(c, "meter")) {
        metered = atoi(w[1]);
        entered = monotonic();
        inside_ns = 0;
    } else if (!strcmp(c, "gpm_breaks_memory")) breaks_memory = atoi(w[1]);
    else if (!strcmp(c, "jump")) jumped += (ns_t)(strtod(w[1], NULL) * 1e9);
    else if (!strcmp(c, "cost") && n > 2) call_of(w[1])->cost_us = (unsigned)atoi(w[2]);
    else {
        struct gpu *g = gpu_of(w[1]);
        return g ? gpu_command(g, n, w) : -1;
    }
    return 0;
}

static int do_one(char *line) {
    double at;
    int used = 0;
    while (isspace((unsigned char)*line)) line++;
    if (*line != '@') return do_text(line);
    if (sscanf(line, "@%lf %n", &at, &used) != 1 || !used || n_later == MAX_LATER) return -1;
    later[n_later].at_s = at;
    snprintf(later[n_later++].command, sizeof later[0].command, "%s", line + used);
    due_later = 1;
    return 0;
}

static char refused[160];

static int do_all(const char *commands) {
    char *copy = strdup(commands), *rest = NULL;
    int failed = 0;
    for (char *one = strtok_r(copy, ";\n", &rest); one && !failed; one = strtok_r(NULL, ";\n", &rest)) {
        snprintf(refused, sizeof refused, "%s", one);
        failed = do_one(one);
    }
    free(copy);
    return failed;
}

static void do_what_is_due(void) {
    if (!due_later) return;
    double t = now_ns() / 1e9;
    for (int i = 0; i < n_later; i++)
        if (later[i].at_s >= 0 && later[i].at_s <= t) {
            later[i].at_s = -1;
            if (do_text(later[i].command)) misuse("a command at a time is none");
        }
}

static void prepare(void) {
    if (ready) return;
    ready = 1;
    fresh();
    const char *wanted = getenv("FAKE_NVML");
    if (!wanted || !*wanted) return;
    int failed;
    if (access(wanted, R_OK) == 0) {
        FILE *file = fopen(wanted, "r");
        char *all = NULL;
        size_t size = 0;
        failed = !file || getdelim(&all, &size, '\0', file) < 0 || do_all(all);
        free(all);
        if (file) fclose(file);
    } else
        failed = do_all(wanted);
    if (failed) { fprintf(stderr, "FAKE_NVML: no such command: %s\n", refused); abort(); }
}

API int fake_do(const char *commands) {
    pthread_mutex_lock(&lock);
    prepare();
    int failed = do_all(commands);
    pthread_mutex_unlock(&lock);
    return failed;
}

API long fake_count(const char *what) {
    long count = -1;
    pthread_mutex_lock(&lock);
    prepare();
    if (!strcmp(what, "samples alive")) count = samples_alive;
    else if (!strcmp(what, "samples made")) count = samples_made;
    else if (!strcmp(what, "double frees")) count = double_frees;
    else if (!strcmp(what, "misuses")) count = misuses;
    else if (!strcmp(what, "left at shutdown")) count = left_at_shutdown;
    else if (!strcmp(what, "shutdown races")) count = shutdown_races;
    else if (!strcmp(what, "event sets alive")) count = sets_alive;
    else if (!strcmp(what, "inside ns")) count = inside_ns;
    else if (!strcmp(what, "references")) count = references;
    else if (!strncmp(what, "nvml", 4)) count = call_of(what)->count;
    else if (!strcmp(what, "calls")) {
        count = 0;
        for (int i = 0; i < n_calls; i++) count += calls[i].count;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

API const char *fake_last_misuse(void) { return last_misuse; }

/* ---- Before and after each call ---------------------------------------------- */

static struct handle *handle_for(struct gpu *g, struct slice *s) {
    unsigned instance = s ? s->instance : 0;
    for (int i = 0; i < n_handles; i++) {
        struct handle *h = &handles[i];
        if (h->gpu == g && h->slice == s && h->instance == instance && h->generation == g->generation && h->session == session)
            return h;
    }
    struct handle *h = &handles[n_handles % MAX_HANDLES];
    if (n_handles < MAX_HANDLES) n_handles++;
    else { h = &handles[rand() % MAX_HANDLES]; }
    *h = (struct handle){g, s, instance, g->generation, session};
    return h;
}

static int resolve(void *device, struct handle **out) {
    char *p = device, *first = (char *)handles;
    if (p < first || p >= (char *)&handles[n_handles] || (p - first) % (long)sizeof *handles) return INVALID_ARGUMENT;
    struct handle *h = device;
    if (h->session != session) {
        misuse("a handle of before the shutdown");
        return INVALID_ARGUMENT;
    }
    if (h->gpu->lost) return h->gpu->lost;
    if (h->generation != h->gpu->generation) return GPU_IS_LOST;
    if (h->slice && !(h->slice->taken && h->slice->instance == h->instance)) return INVALID_ARGUMENT;
    *out = h;
    return SUCCESS;
}

static int fault_of(const char *function, int gpu) {
    int frees = strstr(function, "Free") || strstr(function, "Shutdown");
    for (int i = 0; i < n_faults; i++) {
        struct fault *f = &faults[i];
        int any = !strcmp(f->function, "*");
        if (any ? frees : strcmp(f->function, function)) continue;
        if (f->gpu >= 0 && f->gpu != gpu) continue;
        long nth = ++f->seen;
        if (f->code && nth >= f->first && (f->count < 0 || nth < f->first + f->count)) return f->code;
    }
    return SUCCESS;
}

/* With a device: about it. Locks; end() unlocks. */
static int begin(struct call **me, const char *function, void *device, int about_device, struct handle **h) {
    pthread_mutex_lock(&lock);
    if (metered) entered = monotonic();
    prepare();
    if (!*me) *me = call_of(function);
    (*me)->count++;
    do_what_is_due();
    if (!references) return UNINITIALIZED;
    if (!about_device) return fault_of(function, -1);
    int rc = resolve(device, h);
    if (rc) return rc;
    rc = fault_of(function, (*h)->gpu->index);
    if (!rc) advance((*h)->gpu);
    return rc;
}

static int end(struct call *me, int rc) {
    unsigned cost = me->cost_us;
    if (metered) inside_ns += monotonic() - entered;
    pthread_mutex_unlock(&lock);
    if (cost) usleep(cost);
    return rc;
}

#define BEGIN static struct call *me; int rc = begin(&me, __func__, NULL, 0, NULL)
#define BEGIN_OF(device) \
    static struct call *me; struct handle *h = NULL; \
    int rc = begin(&me, __func__, device, 1, &h); \
    struct gpu *g = h ? h->gpu : NULL; struct slice *slice = h ? h->slice : NULL; \
    (void)g; (void)slice
#define NEED(condition, code) do { if (!rc && !(condition)) rc = code; } while (0)
#define END return end(me, rc)
/* Most readings are of a whole GPU. */
#define WHOLE NEED(!slice, NOT_SUPPORTED)

static int put_text(char *to, unsigned length, const char *text) {
    if (!to) return INVALID_ARGUMENT;
    if (strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

/* ---- NVML: the library ------------------------------------------------------- */

API int nvmlInitWithFlags(unsigned flags) {
    static struct call *me;
    (void)flags;
    pthread_mutex_lock(&lock);
    prepare();
    if (!me) me = call_of(__func__);
    me->count++;
    do_what_is_due();
    int rc = fault_of(__func__, -1);
    if (!rc && references++ == 0) session++;
    return end(me, rc);
}

API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void) {
    BEGIN;
    if (!rc && --references == 0) {
        left_at_shutdown += samples_alive;
        if (waiting) { shutdown_races++; misuse("shut down while somebody waits for events"); }
    }
    END;
}

API const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    BEGIN;
    if (!rc) rc = put_text(version, length, driver);
    END;
}

API int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    BEGIN;
    if (!rc) rc = put_text(version, length, "13.580.95 (simulated)");
    END;
}

API int nvmlSystemGetCudaDriverVersion(int *version) {
    BEGIN;
    NEED(version, INVALID_ARGUMENT);
    if (!rc) *version = 13000;
    END;
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* ---- NVML: which GPUs there are ---------------------------------------------- */

API int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN;
    NEED(count, INVALID_ARGUMENT);
    if (!rc) *count = (unsigned)n_gpus;
    END;
}

static int give(struct gpu *g, const char *function, void **device) {
    if (g->lost) return g->lost;
    int rc = fault_of(function, g->index);
    if (!rc) *device = handle_for(g, NULL);
    return rc;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    static struct call *me;
    pthread_mutex_lock(&lock);
    prepare();
    if (!me) me = call_of(__func__);
    me->count++;
    do_what_is_due();
    int rc = references ? SUCCESS : UNINITIALIZED;
    NEED(device && index < (unsigned)n_gpus, INVALID_ARGUMENT);
    if (!rc) rc = give(&gpus[index], __func__, device);
    END;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    BEGIN;
    NEED(uuid && device, INVALID_ARGUMENT);
    if (!rc) {
        rc = NOT_FOUND;
        for (int i = 0; i < n_gpus && rc == NOT_FOUND; i++) {
            if (!strcmp(gpus[i].uuid, uuid)) rc = give(&gpus[i], __func__, device);
            for (int s = 0; s < MAX_SLICES; s++)
                if (gpus[i].slices[s].taken && !strcmp(gpus[i].slices[s].uuid, uuid)) {
                    *device = handle_for(&gpus[i], &gpus[i].slices[s]);
                    rc = SUCCESS;
                }
        }
    }
    END;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    BEGIN;
    NEED(bus_id && device, INVALID_ARGUMENT);
    if (!rc) {
        rc = NOT_FOUND;
        for (int i = 0; i < n_gpus && rc == NOT_FOUND; i++) {
            const char *own = gpus[i].bus_id; /* 8 digits of domain; 4 will do */
            if (!strcasecmp(own, bus_id) || !strcasecmp(own + 4, bus_id)) rc = give(&gpus[i], __func__, device);
        }
    }
    END;
}

API int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    BEGIN_OF(device);
    char text[160];
    if (!rc) {
        if (slice) snprintf(text, sizeof text, "%s MIG %s", g->name, slice->profile);
        else snprintf(text, sizeof text, "%s", g->name);
        rc = put_text(name, length, text);
    }
    END;
}

API int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    BEGIN_OF(device);
    if (!rc) rc = put_text(uuid, length, slice ? slice->uuid : g->uuid);
    END;
}

API int nvmlDeviceGetIndex(void *device, unsigned *index) {
    BEGIN_OF(device);
    NEED(index, INVALID_ARGUMENT);
    if (!rc) *index = slice ? (unsigned)(slice - g->slices) : (unsigned)g->index;
    END;
}

API int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    BEGIN_OF(device);
    WHOLE;
    NEED(minor, INVALID_ARGUMENT);
    if (!rc) *minor = (unsigned)g->index;
    END;
}

struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem; char bus_id[32]; };

API int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    BEGIN_OF(device);
    WHOLE;
    NEED(pci, INVALID_ARGUMENT);
    if (!rc) {
        memset(pci, 0, sizeof *pci);
        pci->bus = (unsigned)strtoul(g->bus_id + 9, NULL, 16);
        pci->device_id = 0x233010DE;
        snprintf(pci->bus_id, sizeof pci->bus_id, "%s", g->bus_id);
        snprintf(pci->legacy, sizeof pci->legacy, "%s", g->bus_id + 4);
    }
    END;
}

/* ---- NVML: plain numbers ----------------------------------------------------- */

#define NUMBER(function, type, expression) \
    API int function(void *device, type *out) { \
        BEGIN_OF(device); \
        WHOLE; \
        NEED(out, INVALID_ARGUMENT); \
        if (!rc) *out = (type)(expression); \
        END; \
    }
#define NUMBER_IF(function, type, condition, expression) \
    API int function(void *device, type *out) { \
        BEGIN_OF(device); \
        WHOLE; \
        NEED(out, INVALID_ARGUMENT); \
        NEED(condition, NOT_SUPPORTED); \
        if (!rc) *out = (type)(expression); \
        END; \
    }

NUMBER(nvmlDeviceGetArchitecture, unsigned, g->model->architecture)
NUMBER_IF(nvmlDeviceGetMemoryBusWidth, unsigned, g->now[V_bus_bits] > 0, g->now[V_bus_bits])
NUMBER(nvmlDeviceGetPowerUsage, unsigned, g->now[V_power] * 1000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, g->now[V_limit] * 1000)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, g->now[V_limit] * 1000)
/* It moves every 100 ms. */
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, g->energy_mj - fmod(now_ns() / 1e6, 100) * g->now[V_power] / 1000)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, g->now[V_reasons])
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, u64, 0x1FF)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, g->virtual_mode)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, g->model->gpm ? MAX_SLICES : 0)
NUMBER(nvmlDeviceGetSupportedEventTypes, u64, 0x0B)
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, g->now[V_reasons])
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, g->model->sms * 128)
#endif

API int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *mhz) {
    BEGIN_OF(device);
    WHOLE;
    NEED(mhz && type < 4, INVALID_ARGUMENT);
    NEED(type != 2 || g->now[V_memory_clock] > 0, NOT_SUPPORTED);
    if (!rc) *mhz = (unsigned)(type == 2 ? g->now[V_memory_clock] : g->now[V_sm_clock] * (type == 3 ? 0.9 : 1));
    END;
}

API int nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *mhz) {
    BEGIN_OF(device);
    WHOLE;
    NEED(mhz && type < 4, INVALID_ARGUMENT);
    NEED(type != 2 || g->now[V_max_memory_clock] > 0, NOT_SUPPORTED);
    if (!rc) *mhz = type == 2 ? (unsigned)g->now[V_max_memory_clock] : g->model->sm_mhz;
    END;
}

API int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
    BEGIN_OF(device);
    WHOLE;
    NEED(celsius && sensor == 0, INVALID_ARGUMENT);
    if (!rc) *celsius = (unsigned)g->now[V_temperature];
    END;
}

API int nvmlDeviceGetTemperatureThreshold(void *device, unsigned kind, unsigned *celsius) {
    static const unsigned DEGREES[] = {92, 89, 95, 87};
    BEGIN_OF(device);
    WHOLE;
    NEED(celsius, INVALID_ARGUMENT);
    NEED(kind < 4, NOT_SUPPORTED);
    if (!rc) *celsius = DEGREES[kind];
    END;
}

#ifndef OLD_DRIVER
struct temperature { unsigned version, sensor; int celsius; };

API int nvmlDeviceGetTemperatureV(void *device, struct temperature *out) {
    BEGIN_OF(device);
    WHOLE;
    NEED(out, INVALID_ARGUMENT);
    NEED(out->version == (sizeof *out | 1u << 24), VERSION_MISMATCH);
    NEED(out->sensor == 0, INVALID_ARGUMENT);
    if (!rc) out->celsius = (int)g->now[V_temperature];
    END;
}
#endif

struct utilization { unsigned gpu, memory; };

API int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out) {
    BEGIN_OF(device);
    WHOLE;
    NEED(out, INVALID_ARGUMENT);
    NEED(!g->mig, NOT_SUPPORTED);
    if (!rc) *out = (struct utilization){(unsigned)g->now[V_gpu_busy], (unsigned)g->now[V_memory_busy]};
    END;
}

/* Measures for 20 ms, whatever is asked. */
API int nvmlDeviceGetPcieThroughput(void *device, unsigned direction, unsigned *kb_per_s) {
    BEGIN_OF(device);
    WHOLE;
    NEED(kb_per_s && direction < 2, INVALID_ARGUMENT);
    if (!rc) *kb_per_s = (unsigned)(g->now[direction ? V_pcie_rx : V_pcie_tx] * 1024);
    pthread_mutex_unlock(&lock);
    usleep(20000);
    pthread_mutex_lock(&lock);
    END;
}

/* ---- NVML: memory and who uses it -------------------------------------------- */

static u64 total_of(struct handle *h) {
    return (h->slice ? h->slice->mib : (u64)h->gpu->now[V_total]) * 1048576;
}

static u64 used_of(struct handle *h) {
    u64 used = (u64)h->gpu->now[V_used], total = total_of(h);
    return h->slice ? total * 7 / 10 : used < total ? used : total;
}

static u64 reserved_of(struct handle *h) { return h->slice ? 0 : h->gpu->model->reserved_mib * 1048576; }

static int memory_code(struct handle *h) {
    struct gpu *g = h->gpu;
    if (g->memory_broken) return IN_USE;
    if (!h->slice && !g->model->memory_mib && isnan(g->held[V_total])) return NOT_SUPPORTED;
    return SUCCESS;
}

struct memory { u64 total, free, used; };

API int nvmlDeviceGetMemoryInfo(void *device, struct memory *out) {
    BEGIN_OF(device);
    NEED(out, INVALID_ARGUMENT);
    if (!rc) rc = memory_code(h);
    if (!rc) {
        u64 used = used_of(h) + reserved_of(h); /* this one counts what is reserved */
        *out = (struct memory){total_of(h), total_of(h) - used, used};
    }
    END;
}

#ifndef OLD_DRIVER
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };

API int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out) {
    BEGIN_OF(device);
    NEED(out, INVALID_ARGUMENT);
    NEED(out->version == (sizeof *out | 2u << 24), VERSION_MISMATCH);
    if (!rc) rc = memory_code(h);
    if (!rc) {
        out->total = total_of(h);
        out->reserved = reserved_of(h);
        out->used = used_of(h);
        out->free = out->total - out->reserved - out->used;
    }
    END;
}
#endif

struct process { unsigned pid; u64 bytes; unsigned instance, compute_instance; };

/* The third version is laid out as the second was. */
#ifdef OLD_DRIVER
API int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, struct process *out) {
#else
API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out) {
#endif
    BEGIN_OF(device);
    NEED(count && (out || !*count), INVALID_ARGUMENT);
    if (!rc) {
        unsigned there = (unsigned)g->n_processes, room = *count;
        *count = there;
        if (room < there) rc = INSUFFICIENT_SIZE;
        for (unsigned i = 0; !rc && i < there; i++)
            out[i] = (struct process){g->processes[i].pid, g->processes[i].bytes, ~0u, ~0u};
    }
    END;
}

/* ---- NVML: field values ------------------------------------------------------ */

struct field {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type;
    int code;
    union { double d; unsigned u; unsigned long ul; u64 ull; long long ll; int i; unsigned short us; } value;
};

static const struct override *override_of(const struct override *all, unsigned id) {
    for (int i = 0; i < 64 && all[i].used; i++)
        if (all[i].id == id) return &all[i];
    return NULL;
}

static void put_number(struct field *f, unsigned type, double number) {
    f->type = type;
    switch (type) {
    case 0: f->value.d = number; break;
    case 1: f->value.u = (unsigned)(u64)number; break;
    case 2: f->value.ul = (unsigned long)number; break;
    case 3: f->value.ull = (u64)number; break;
    case 4: f->value.ll = (long long)number; break;
    case 5: f->value.i = (int)number; break;
    default: f->value.us = (unsigned short)number;
    }
}

/* From 580.82 on; in 575 and the first 580 they were 251 to 253, and before that none. */
static unsigned slowdown_ids(void) {
    int major = 0, minor = 0;
    sscanf(driver, "%d.%d", &major, &minor);
    if (major > 580 || (major == 580 && minor >= 82)) return 269;
    return major >= 575 ? 251 : 0;
}

static void fill_field(struct gpu *g, struct field *f) {
    const double *v = g->now;
    double number = 0;
    unsigned type = 3, slow = slowdown_ids();
    f->code = SUCCESS;
    switch (f->id) {
    case 3: number = v[V_ecc_corrected]; break;
    case 4: number = v[V_ecc_uncorrected]; break;
    case 74: number = g->capped_ns; break;
    case 75: case 76: case 77: number = 0; break;
    case 82: type = 1; number = v[V_memory_temperature]; if (!g->model->hbm) f->code = NOT_SUPPORTED; break;
    case 83: number = g->energy_mj; break;
    case 138: number = g->nvlink_tx_kib; if (!g->model->hbm) f->code = NOT_SUPPORTED; break;
    case 139: number = g->nvlink_rx_kib; if (!g->model->hbm) f->code = NOT_SUPPORTED; break;
    case 142: case 143: number = f->id == 142 ? v[V_remapped] : 0; if (!g->model->hbm) f->code = NOT_SUPPORTED; break;
    case 144: case 145: if (!g->model->hbm) f->code = NOT_SUPPORTED; break;
    case 185: case 186: type = 1; number = v[V_power] * 1000; break;
    case 193: case 194: case 195: case 196: type = 5; number = 0; break;
    case 197: type = 1; number = g->pcie_tx_bytes; break; /* 32 bits: it wraps */
    case 198: type = 1; number = g->pcie_rx_bytes; break;
    default:
        if (slow && f->id == slow) number = g->thermal_ns;
        else if (slow && f->id > slow && f->id < slow + 3) number = 0;
        else if (f->id > 250 && f->id < 274 && g->model->architecture > 9) { type = 1; number = 3; } /* power profiles */
        else f->code = f->id > 0 && f->id < 300 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    }
    const struct override *o = override_of(g->fields, f->id);
    if (o && o->code) f->code = o->code;
    if (o && o->type >= 0) type = (unsigned)o->type;
    memset(&f->value, 0xA5, sizeof f->value); /* undefined unless it succeeds */
    f->timestamp = monotonic() / 1000;
    f->latency_us = 12;
    if (!f->code) put_number(f, type, number);
}

API int nvmlDeviceGetFieldValues(void *device, int count, struct field *values) {
    BEGIN_OF(device);
    WHOLE;
    NEED(values && count >= 0, INVALID_ARGUMENT);
    for (int i = 0; !rc && i < count; i++) fill_field(g, &values[i]);
    END;
}

/* ---- NVML: MIG --------------------------------------------------------------- */

API int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    BEGIN_OF(device);
    NEED(!slice, INVALID_ARGUMENT);
    NEED(current && pending, INVALID_ARGUMENT);
    NEED(g->model->hbm, NOT_SUPPORTED);
    if (!rc) *current = *pending = (unsigned)g->mig;
    END;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out) {
    BEGIN_OF(device);
    NEED(!slice && out && index < MAX_SLICES, INVALID_ARGUMENT);
    NEED(g->mig, NOT_FOUND);
    NEED(g->slices[index].taken, NOT_FOUND);
    if (!rc) *out = handle_for(g, &g->slices[index]);
    END;
}

API int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is) {
    BEGIN_OF(device);
    NEED(is, INVALID_ARGUMENT);
    if (!rc) *is = slice != NULL;
    END;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **out) {
    BEGIN_OF(device);
    NEED(out && slice, INVALID_ARGUMENT);
    if (!rc) *out = handle_for(g, NULL);
    END;
}

API int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    BEGIN_OF(device);
    NEED(id && slice, INVALID_ARGUMENT);
    if (!rc) *id = slice->instance;
    END;
}

API int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
    BEGIN_OF(device);
    NEED(id && slice, INVALID_ARGUMENT);
    if (!rc) *id = 0;
    END;
}

struct attributes { unsigned sms, copy, decoders, encoders, jpeg, ofa, slices, compute_slices; u64 mib; };

API int nvmlDeviceGetAttributes_v2(void *device, struct attributes *out) {
    BEGIN_OF(device);
    NEED(out, INVALID_ARGUMENT);
    NEED(slice, NOT_SUPPORTED);
    if (!rc) {
        unsigned parts = (unsigned)atoi(slice->profile);
        *out = (struct attributes){16 * parts, parts, 0, 0, 0, 0, parts, parts, slice->mib};
    }
    END;
}

/* ---- NVML: events ------------------------------------------------------------ */

static void happen(int gpu, u64 type, u64 data) {
    if (n_events < MAX_EVENTS) {
        events[n_events].gpu = gpu;
        events[n_events].type = type;
        events[n_events++].data = data;
    }
    pthread_cond_broadcast(&happened);
}

API int nvmlEventSetCreate(void **set) {
    BEGIN;
    NEED(set, INVALID_ARGUMENT);
    if (!rc) {
        struct event_set *made = calloc(1, sizeof *made);
        made->magic = ALIVE;
        sets_alive++;
        *set = made;
    }
    END;
}

API int nvmlDeviceRegisterEvents(void *device, u64 types, struct event_set *set) {
    BEGIN_OF(device);
    NEED(set && set->magic == ALIVE, INVALID_ARGUMENT);
    NEED(!(types & ~0x0BULL), NOT_SUPPORTED);
    if (!rc) {
        set->masks[g->index] |= types;
        int kept = 0; /* what was before is not told */
        for (int i = 0; i < n_events; i++)
            if (events[i].gpu != g->index) events[kept++] = events[i];
        n_events = kept;
    }
    END;
}

struct event_data { void *device; u64 type, data; unsigned instance, compute_instance; };

static int next_event(struct event_set *set, struct event_data *out) {
    for (int i = 0; i < n_events; i++)
        if (set->masks[events[i].gpu] & events[i].type) {
            *out = (struct event_data){handle_for(&gpus[events[i].gpu], NULL), events[i].type, events[i].data, ~0u, ~0u};
            memmove(&events[i], &events[i + 1], sizeof *events * (size_t)(--n_events - i));
            return SUCCESS;
        }
    return TIMEOUT;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned timeout_ms) {
    BEGIN;
    NEED(out && set && set->magic == ALIVE, INVALID_ARGUMENT);
    if (!rc) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (timeout_ms % 1000) * 1000000L;
        if (until.tv_nsec >= 1000000000) { until.tv_nsec -= 1000000000; until.tv_sec++; }
        waiting++;
        int slept = 0;
        while ((rc = next_event(set, out)) == TIMEOUT && slept != ETIMEDOUT) {
            slept = pthread_cond_timedwait(&happened, &lock, &until);
            do_what_is_due();
        }
        waiting--;
    }
    END;
}

API int nvmlEventSetFree(struct event_set *set) {
    BEGIN;
    NEED(set && set->magic == ALIVE, INVALID_ARGUMENT);
    if (!rc) {
        set->magic = DEAD;
        sets_alive--;
        free(set);
    }
    END;
}

/* ---- NVML: GPM --------------------------------------------------------------- */

#ifndef OLD_DRIVER

struct gpm_support { unsigned version, supported; };
struct gpm_metric { unsigned id; int code; double value; char *short_name, *long_name, *unit; };
struct gpm_metrics { unsigned version, count; struct sample *one, *two; struct gpm_metric metrics[]; };

API int nvmlGpmQueryDeviceSupport(void *device, struct gpm_support *out) {
    BEGIN_OF(device);
    NEED(out, INVALID_ARGUMENT);
    NEED(out->version == 1, VERSION_MISMATCH);
    if (!rc) {
        out->supported = (unsigned)g->model->gpm;
        if (g->mig && breaks_memory) g->memory_broken = 1;
    }
    END;
}


static struct sample *sample_of(struct sample *s, const char *freed) {
    for (int i = 0; i < n_made; i++)
        if (made[i] == s) return s;
    for (unsigned long i = 0; i < quarantined && i < MAX_QUARANTINE; i++)
        if (quarantine[i] == s) { misuse(freed); return NULL; }
    misuse("a sample that was never allocated");
    return NULL;
}

API int nvmlGpmSampleAlloc(struct sample **out) {
    BEGIN;
    NEED(out, INVALID_ARGUMENT);
    NEED(n_made < 1 << 16, OUT_OF_MEMORY);
    if (!rc) {
        struct sample *s = calloc(1, sizeof *s);
        s->magic = ALIVE;
        made[n_made++] = s;
        samples_alive++;
        samples_made++;
        *out = s;
    }
    END;
}

API int nvmlGpmSampleFree(struct sample *s) {
    BEGIN;
    NEED(s, INVALID_ARGUMENT);
    if (!rc) {
        int at = 0;
        while (at < n_made && made[at] != s) at++;
        if (at == n_made) {
            double_frees++;
            misuse("a sample freed twice, or never allocated");
            rc = INVALID_ARGUMENT;
        } else {
            made[at] = made[--n_made];
            samples_alive--;
            memset(s, 0xDD, sizeof *s);
            s->magic = DEAD;
            struct sample **slot = &quarantine[quarantined++ % MAX_QUARANTINE];
            free(*slot); /* far enough back */
            *slot = s;
        }
    }
    END;
}

static int take(struct gpu *g, int instance, struct sample *s) {
    if (!g->model->gpm) return NOT_SUPPORTED;
    if (!sample_of(s, "a sample was filled after it was freed")) return INVALID_ARGUMENT;
    s->filled = 1;
    s->gpu = g;
    s->instance = instance;
    s->at = g->at; /* what the sums are of */
    memcpy(s->sums, g->sums, sizeof s->sums);
    return SUCCESS;
}

API int nvmlGpmSampleGet(void *device, struct sample *s) {
    BEGIN_OF(device);
    NEED(s, INVALID_ARGUMENT);
    if (!rc) {
        if (g->mig && breaks_memory) g->memory_broken = 1;
        rc = take(g, slice ? (int)slice->instance : -1, s);
    }
    END;
}

API int nvmlGpmMigSampleGet(void *device, unsigned instance, struct sample *s) {
    BEGIN_OF(device);
    NEED(s && !slice, INVALID_ARGUMENT);
    NEED(g->mig, INVALID_ARGUMENT);
    if (!rc) {
        if (breaks_memory) g->memory_broken = 1;
        rc = NOT_FOUND;
        for (int i = 0; i < MAX_SLICES; i++)
            if (g->slices[i].taken && g->slices[i].instance == instance) rc = take(g, (int)instance, s);
    }
    END;
}

static void fill_metric(struct gpm_metric *m, struct sample *one, struct sample *two) {
    static const struct { unsigned id; int sum, ratio; } KNOWN[] = {
        {1, A_GRAPHICS, 1}, {2, A_SM, 1}, {3, A_OCCUPANCY, 1}, {5, A_TENSOR, 1}, {7, A_TENSOR, 1},
        {10, A_DRAM, 1}, {20, A_PCIE_TX, 0}, {21, A_PCIE_RX, 0}, {60, A_NVLINK_RX, 0}, {61, A_NVLINK_TX, 0},
    };
    ns_t span = two->at - one->at;
    m->short_name = m->long_name = m->unit = NULL;
    m->code = m->id ? NOT_SUPPORTED : INVALID_ARGUMENT;
    m->value = 1e300; /* not valid unless it succeeds */
    const struct override *o = override_of(one->gpu->metrics, m->id);
    if (o && o->code == NO_NUMBER) { m->code = SUCCESS; m->value = NAN; return; }
    if (o && o->code) { m->code = o->code; return; }
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (KNOWN[i].id != m->id) continue;
        m->code = SUCCESS;
        double sum = two->sums[KNOWN[i].sum] - one->sums[KNOWN[i].sum];
        if (span < 100000000) m->value = KNOWN[i].ratio ? NAN : 0;
        else m->value = sum / (span / 1e9);
    }
}

API int nvmlGpmMetricsGet(struct gpm_metrics *all) {
    BEGIN;
    NEED(all, INVALID_ARGUMENT);
    NEED(all->version == 1, VERSION_MISMATCH);
    NEED(all->one && all->two && all->one != all->two, INVALID_ARGUMENT);
    NEED(sample_of(all->one, "a freed sample was compared") && sample_of(all->two, "a freed sample was compared"), INVALID_ARGUMENT);
    NEED(all->one->filled && all->two->filled, INVALID_ARGUMENT);
    if (!rc && (all->one->gpu != all->two->gpu || all->one->instance != all->two->instance)) {
        misuse("samples of two GPUs were compared");
        rc = INVALID_ARGUMENT;
    }
    if (!rc && all->one->at > all->two->at) {
        misuse("the newer sample came first");
        rc = INVALID_ARGUMENT;
    }
    for (unsigned i = 0; !rc && i < all->count; i++) fill_metric(&all->metrics[i], all->one, all->two);
    END;
}

API int nvmlGpmQueryIfStreamingEnabled(void *device, unsigned *state) {
    BEGIN_OF(device);
    NEED(state, INVALID_ARGUMENT);
    if (!rc) *state = 0;
    END;
}

#endif
