#include "optimizer/schedule/action.h"
