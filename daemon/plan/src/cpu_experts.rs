//! Which of a mixture's experts the CPU computes beside a GPU, where they lie in host memory, while others are copied over the bus.
//!
//! A bus is no faster than the CPU's own memory on many machines, so that an expert with few rows is computed there sooner than it
//! is copied. Where an expert is computed follows from the rows that a pass has for it and from two numbers of the plan, and from
//! nothing else: neither from what the expert cache holds nor from how long anything took.

/// Which experts of a layer go to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuExperts {
    /// So many of a layer's experts, those with most rows, go to the GPU.
    pub on_gpu: usize,
    /// And all that have more rows than this, for which the CPU would take longer than the bus.
    pub rows_max: usize,
}

impl CpuExperts {
    /// Which experts the CPU computes, if a layer's have so many rows. Of experts with as many rows the first go to the GPU.
    pub fn of_cpu(&self, rows: &[usize]) -> Vec<bool> {
        let mut touched: Vec<usize> = (0..rows.len()).filter(|&expert| rows[expert] > 0).collect();
        touched.sort_by_key(|&expert| std::cmp::Reverse(rows[expert]));
        let mut of_cpu = vec![false; rows.len()];
        for &expert in touched.iter().skip(self.on_gpu) {
            of_cpu[expert] = rows[expert] <= self.rows_max;
        }
        of_cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_gets_those_with_most_rows_and_all_with_many() {
        let split = |on_gpu, rows_max, rows: &[usize]| {
            let of_cpu = CpuExperts { on_gpu, rows_max }.of_cpu(rows);
            (0..rows.len())
                .filter(|&expert| of_cpu[expert])
                .collect::<Vec<_>>()
        };
        let rows = [3, 0, 1, 3, 9, 1, 3];
        assert_eq!(split(2, 4, &rows), [2, 3, 5, 6]);
        assert_eq!(split(1, 2, &rows), [2, 5]);
        assert_eq!(split(0, 9, &rows), [0, 2, 3, 4, 5, 6]);
        assert_eq!(split(6, 9, &rows), [0; 0]);
        assert_eq!(split(0, 0, &rows), [0; 0]);
    }
}
