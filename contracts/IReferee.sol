// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The machine behind the game: evaluates one element of one operator
/// @notice The game contains no arithmetic; it calls the machines through these interfaces only, so the game can be
/// tested with a toy machine. Every function is pure in effect: it reads no storage, reverts on a wrong witness, and
/// reverts, instead of deciding, when gas runs out.
interface IElements {
    /// @notice The complete input of an element's computation.
    /// @param programRoot root of the program (docs/formats.md section 3)
    /// @param dataRoot root of the data set
    /// @param scalarRoot root of the table of scalars
    /// @param traceRoot outputs of this step's operators
    /// @param stateRoot state before this step; zero if the prover did not open it
    /// @param seed seed of the job
    /// @param step step, counted from 1
    /// @param steps number of steps of the job
    /// @param operator index of the operator
    /// @param element index of the element in its output
    /// @param bits of a rounded word in mode `logged`, 26 to 32; 0 in mode `correct`, as are the three that follow
    /// @param logStep position of the step in its checkpoint interval's log, counted from 0
    /// @param logSteps steps of that log
    /// @param logRoot root of that log
    struct Context {
        bytes32 programRoot;
        bytes32 dataRoot;
        bytes32 scalarRoot;
        bytes32 traceRoot;
        bytes32 stateRoot;
        uint64 seed;
        uint64 step;
        uint64 steps;
        uint32 operator;
        uint32 element;
        uint8 bits;
        uint32 logStep;
        uint32 logSteps;
        bytes32 logRoot;
    }

    /// @notice The word of an element that is decided in one piece.
    function evaluate(Context calldata context, bytes calldata proof) external view returns (uint32 word);

    /// @notice The exact partial sum of one block of an element, encoded.
    function evaluateBlock(
        Context calldata context,
        uint32 part,
        bytes calldata proof
    ) external view returns (bytes memory partialSum);

    /// @notice The word that is the rounded total of partial sums; reverts if one is not canonical. In mode `logged`
    /// the last item is not a partial sum, but the proof of the element with its log entry as the only opening.
    function combine(Context calldata context, bytes[] calldata partials) external view returns (uint32 word);
}

/// @title The machine of mode `correct`, which also knows the program
interface IReferee is IElements {
    /// @notice Number of state tensors and of operators of a program.
    function program(
        bytes32 programRoot,
        bytes calldata header
    ) external view returns (uint32 states, uint32 operators);

    /// @notice The operator whose output becomes state tensor `tensor`; computed = false if the program does not change
    /// it.
    function source(
        bytes32 programRoot,
        uint32 tensor,
        bytes calldata header,
        bytes calldata record,
        bytes32[] calldata path
    ) external view returns (bool computed, uint32 operator);

    /// @notice Number of elements of an operator's output, whether all must be finite, and number of blocks in which
    /// one element is decided.
    function describe(
        bytes32 programRoot,
        uint32 operator,
        bytes calldata header,
        bytes calldata record,
        bytes32[] calldata path
    ) external view returns (uint32 elements, bool finite, uint32 blocks);
}
