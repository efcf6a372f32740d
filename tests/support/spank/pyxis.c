/* pyxis's options for a Slurm without pyxis: accepts and refuses the same as pyxis 0.24, records the options of each
 * task, and runs the task in the image with clusterctl's own runner.
 *
 * plugstack.conf: required pyxis.so record=FOLDER store=FOLDER python=INTERPRETER runner=FOLDER_OF_THE_RUNNER mounts=FLAG
 *
 * A container is a folder as in enroot, STORE/NODE/pyxis_JOB.STEP or pyxis_NAME. The first task on its node creates it;
 * it is `whole` when it is unpacked, and removed with its step unless it has a name. Files in STORE cause trouble:
 * `slow` (unpacking waits until the file is gone), `full` (it stops half-way), `keep` (the removal is interrupted).
 * `mounts` are used if a container has no others: the images of the tests contain no programs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

enum option_number {
    IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENVIRONMENT,
    MOUNT_HOME, NO_MOUNT_HOME, REMAP_ROOT, NO_REMAP_ROOT, ENTRYPOINT, NO_ENTRYPOINT, WRITABLE, READONLY,
    OPTIONS
};

static char *given[OPTIONS]; /* the argument, "" for a switch */
/* For a step with a container; set in its slurmstepd. */
static char owner[64];        /* identifies this slurmstepd */
static char node[2048];       /* the folder of this node's containers */
static char container[4096];  /* the container of this step */
static const char *store;
static int take(int number, const char *argument, int remote);

static struct spank_option options[] = {
    {"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "[pyxis] the image to use", 1, IMAGE, take},
    {"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[pyxis] bind mounts, flags joined by '+'", 1, MOUNTS, take},
    {"container-workdir", "PATH", "[pyxis] working directory inside the container", 1, WORKDIR, take},
    {"container-name", "NAME", "[pyxis] name to use for the container", 1, NAME, take},
    {"container-save", "PATH", "[pyxis] save the container state to a squashfs", 1, SAVE, take},
    {"container-env", "NAME[,NAME...]", "[pyxis] variables whose values on the host win", 1, ENVIRONMENT, take},
    {"container-mount-home", NULL, "[pyxis] bind mount the home directory", 0, MOUNT_HOME, take},
    {"no-container-mount-home", NULL, "[pyxis] do not bind mount the home directory", 0, NO_MOUNT_HOME, take},
    {"container-remap-root", NULL, "[pyxis] be root inside the container", 0, REMAP_ROOT, take},
    {"no-container-remap-root", NULL, "[pyxis] do not be root inside the container", 0, NO_REMAP_ROOT, take},
    {"container-entrypoint", NULL, "[pyxis] execute the entrypoint of the image", 0, ENTRYPOINT, take},
    {"no-container-entrypoint", NULL, "[pyxis] do not execute the entrypoint", 0, NO_ENTRYPOINT, take},
    {"container-writable", NULL, "[pyxis] make the container file system writable", 0, WRITABLE, take},
    {"container-readonly", NULL, "[pyxis] make the container file system read-only", 0, READONLY, take},
};

/* One SRC:DST[:FLAGS], as pyxis's parse_mount_option() reads it. */
static int check_mount(char *mount)
{
    char *target = strchr(mount, ':');
    char *flags = target ? strchr(target + 1, ':') : NULL;

    if (!target || target == mount || !target[1] || target[1] == ':') {
        slurm_error("pyxis: --container-mounts: invalid format: %s", mount);
        return -1;
    }
    if (flags && (!flags[1] || strchr(flags + 1, ':'))) {
        slurm_error("pyxis: --container-mounts: invalid flags: %s", mount);
        return -1;
    }
    if (mount[0] != '/' && mount[0] != '.') {
        slurm_error("pyxis: --container-mounts: source path is not absolute: %s", mount);
        return -1;
    }
    return 0;
}

static int check_mounts(const char *argument)
{
    char *copy = strdup(argument), *rest = copy, *mount;
    int result = 0;

    while (result == 0 && (mount = strsep(&rest, ",")))
        result = check_mount(mount);
    free(copy);
    return result;
}

static int take(int number, const char *argument, int remote)
{
    static const int opposite[OPTIONS] = {
        [MOUNT_HOME] = NO_MOUNT_HOME, [NO_MOUNT_HOME] = MOUNT_HOME, [REMAP_ROOT] = NO_REMAP_ROOT,
        [NO_REMAP_ROOT] = REMAP_ROOT, [ENTRYPOINT] = NO_ENTRYPOINT, [NO_ENTRYPOINT] = ENTRYPOINT,
        [WRITABLE] = READONLY, [READONLY] = WRITABLE,
    };

    if (number <= ENVIRONMENT && (!argument || !*argument)) {
        slurm_error("pyxis: --%s: argument required", options[number].name);
        return -1;
    }
    if (given[number] && argument && strcmp(given[number], argument)) {
        slurm_error("pyxis: --%s specified multiple times", options[number].name);
        return -1;
    }
    if (number > ENVIRONMENT && given[opposite[number]]) {
        slurm_error("pyxis: both --%s and its opposite were specified", options[number].name);
        return -1;
    }
    if (number == MOUNTS && check_mounts(argument))
        return -1;
    free(given[number]);
    given[number] = strdup(argument ? argument : "");
    (void)remote;
    return 0;
}

int slurm_spank_init(spank_t spank, int argument_count, char **arguments)
{
    (void)argument_count, (void)arguments;
    for (int number = 0; number < OPTIONS; number++)
        if (spank_option_register(spank, &options[number]) != ESPANK_SUCCESS)
            return -1;
    return 0;
}

static const char *setting(const char *name, int argument_count, char **arguments)
{
    size_t length = strlen(name);
    for (int i = 0; i < argument_count; i++)
        if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=')
            return arguments[i] + length + 1;
    slurm_error("pyxis: plugstack.conf gives no %s", name);
    return "/nowhere";
}

static const char *in(const char *folder, const char *name)
{
    static char path[8192];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static int is_there(const char *folder, const char *name)
{
    return access(in(folder, name), F_OK) == 0;
}

static void put(const char *folder, const char *name, const char *text)
{
    FILE *file = fopen(in(folder, name), "w");

    if (file && fputs(text, file) >= 0)
        fclose(file);
}

/* The first line of a file; "" without one. */
static const char *get(const char *folder, const char *name)
{
    static char text[4096];
    FILE *file = fopen(in(folder, name), "r");

    text[0] = 0;
    if (file) {
        if (fgets(text, sizeof(text), file))
            text[strcspn(text, "\n")] = 0;
        fclose(file);
    }
    return text;
}

static int failed(int child, const char *how, int number, const char *message, const char *path)
{
    slurm_error("pyxis: child %d %s %d", child, how, number);
    slurm_error("pyxis: failed to create container filesystem");
    slurm_error("pyxis: printing enroot log file:");
    slurm_error("pyxis:     %s%s", message, path);
    slurm_error("pyxis: couldn't start container");
    return -1;
}

/* `enroot create`, as a separate program: Slurm's signals to a step spare slurmstepd. */
static int unpack(void)
{
    static const char script[] = "while [ -e \"$1/slow\" ]; do sleep 0.05; done; [ ! -e \"$1/full\" ] && : >\"$0/whole\"";
    int child = fork(), status = 0;

    if (child == 0) {
        execl("/bin/sh", "sh", "-c", script, container, store, NULL);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        return failed(child, "terminated with signal", WTERMSIG(status), "[INFO] Extracting squashfs filesystem...", "");
    if (WEXITSTATUS(status))
        return failed(child, "failed with error code:", WEXITSTATUS(status),
                      "Write on output file failed because No space left on device", "");
    return 0;
}

/* With the lock of the node: one of a step's tasks creates the container, the others find it. */
static int make(void)
{
    if (given[IMAGE] && mkdir(container, 0700) == 0) {
        put(container, "image", given[IMAGE]);
        put(container, "owner", owner);
        return unpack();
    }
    if (access(container, F_OK)) {
        slurm_error("pyxis: error: --container-image is not set and there is no container: %s", container);
        return -1;
    }
    if (given[NAME])
        return 0; /* whatever it contains, and whatever the image */
    if (strcmp(get(container, "owner"), owner))
        return failed(getpid(), "failed with error code:", 1, "[ERROR] File already exists: ", container);
    return is_there(container, "whole") ? 0 : -1;
}

static int note(spank_t spank, const char *folder)
{
    uint32_t job = 0, step = 0, rank = 0;
    char path[4096];
    FILE *file;

    spank_get_item(spank, S_JOB_ID, &job);
    spank_get_item(spank, S_JOB_STEPID, &step);
    spank_get_item(spank, S_TASK_GLOBAL_ID, &rank);
    snprintf(path, sizeof(path), "%s/%u.%u.%u", folder, job, step, rank);
    if (!(file = fopen(path, "w"))) {
        slurm_error("pyxis: cannot write %s: %s", path, strerror(errno));
        return -1;
    }
    for (int number = 0; number < OPTIONS; number++)
        if (given[number])
            fprintf(file, "--%s%s%s\n", options[number].name, options[number].has_arg ? "=" : "", given[number]);
    if (!is_there(container, "whole"))
        fprintf(file, "half an image\n");
    return fclose(file);
}

/* In slurmstepd, before its tasks start. */
int slurm_spank_user_init(spank_t spank, int argument_count, char **arguments)
{
    char name[256] = "";
    uint32_t job = 0, step = 0;

    if (!given[IMAGE] && !given[NAME])
        return 0;
    store = setting("store", argument_count, arguments);
    gethostname(name, sizeof(name) - 1);
    snprintf(node, sizeof(node), "%s/%s", store, name);
    mkdir(node, 0700);
    spank_get_item(spank, S_JOB_ID, &job);
    spank_get_item(spank, S_JOB_STEPID, &step);
    if (given[NAME])
        snprintf(container, sizeof(container), "%s/pyxis_%s", node, given[NAME]);
    else
        snprintf(container, sizeof(container), "%s/pyxis_%u.%u", node, job, step);
    snprintf(owner, sizeof(owner), "%d.%ld", getpid(), (long)time(NULL));
    return 0;
}

/* As the user, in the task's process, just before slurmstepd would start the program: start it in the image. */
int slurm_spank_task_init(spank_t spank, int argument_count, char **arguments)
{
    char **program, **environment, **words;
    int program_count, lock, made, count = 0;

    if (!*container)
        return 0;
    lock = open(node, O_RDONLY | O_CLOEXEC);
    while (flock(lock, LOCK_EX) < 0 && errno == EINTR)
        ;
    made = make();
    close(lock);
    if (made || note(spank, setting("record", argument_count, arguments)))
        return -1;
    free(given[IMAGE]);
    given[IMAGE] = strdup(get(container, "image"));
    free(given[NAME]);
    given[NAME] = NULL; /* the runner has no such option */
    if (!given[MOUNTS])
        given[MOUNTS] = strdup(setting("mounts", argument_count, arguments));
    spank_get_item(spank, S_JOB_ARGV, &program_count, &program);
    spank_get_item(spank, S_JOB_ENV, &environment);
    words = calloc(OPTIONS + program_count + 6, sizeof(*words));
    words[count++] = (char *)setting("python", argument_count, arguments);
    words[count++] = "-I";
    words[count++] = "-S";
    words[count++] = (char *)setting("runner", argument_count, arguments);
    for (int number = 0; number < OPTIONS; number++)
        if (given[number] && asprintf(&words[count++], "--%s%s%s", options[number].name,
                                      options[number].has_arg ? "=" : "", given[number]) < 0)
            return -1;
    words[count++] = "--";
    for (int i = 0; i < program_count; i++)
        words[count++] = program[i];
    execve(words[0], words, environment);
    slurm_error("pyxis: cannot start %s: %s", words[0], strerror(errno));
    return -1;
}

/* In slurmstepd, after its tasks: `enroot remove` of this step's container, unless it has a name. */
int slurm_spank_exit(spank_t spank, int argument_count, char **arguments)
{
    static const char *const files[] = {"image", "owner", "whole"};

    (void)spank, (void)argument_count, (void)arguments;
    if (!*container || given[NAME] || strcmp(get(container, "owner"), owner) || is_there(store, "keep"))
        return 0;
    for (int i = 0; i < 3; i++)
        unlink(in(container, files[i]));
    return rmdir(container);
}
