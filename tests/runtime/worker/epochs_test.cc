#include "runtime/worker/rank_job.h"
