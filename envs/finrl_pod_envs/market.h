// What the kernels of the market environments share: the market, its rules and the sizes of a batch of accounts.
#pragma once
#include <cstdint>

#include "mandate.h"

enum Reward { LOG_RETURN = 0, CHANGE = 1 };  // as in market_kernels.py

// [T, N] tables have one row per bar; tables of void are in the dtype of the accounts.
struct Market {
  int64_t members, groups, accounts, assets, reward;  // accounts: of a group
  double cost_rate, cash, leverage, ruin, change_scale, min_growth;
  const void *close, *fill;                    // [T, N] currency
  const void *tradable, *fillable, *delisted;  // [T, N] of 0 and 1; null where all are (none is delisted)
  const uint8_t* turbulent;                    // [T]; null where no bar is
  const void* cost_rates;                      // [T, N] proportional costs; null where all are cost_rate
  Mandate mandate;
};

constexpr int64_t CHUNK_ACCOUNTS = 64;  // accounts that a thread takes at a time
