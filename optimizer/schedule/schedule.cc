#include "optimizer/schedule/schedule.h"
